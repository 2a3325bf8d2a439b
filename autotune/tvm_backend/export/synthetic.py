"""Pictures and sounds that are made from a seed: smooth, with edges and some noise, as what a network was trained on.

Networks that round, and those that choose, answer to noise at random: a value at a threshold takes another step with
another order of additions. The noise is there so that no two neighbours are equal: a kernel that reads the wrong one is
found out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]

_WAVES = 6
_SHAPES = 8
_NOISE = 0.03
_HARMONICS = 8
_PITCH = (0.005, 0.03)  # in waves a sample: 80 to 480 Hz at 16 kHz
_NOTES = 4  # in a sound
_LOUDNESS = 0.3


def picture(rng: np.random.Generator, shape: tuple[int, ...], *, channels_last: bool) -> Values:
    """Draw pictures with values in 0..1.

    Args:
        shape: (N, C, H, W), or (N, H, W, C) with the channels last.
        channels_last: Whether they are.
    """
    batch, *image = shape
    height, width, channels = image if channels_last else (*image[1:], image[0])
    made = np.stack([_scene(rng, height, width, channels) for _ in range(batch)])
    return made if channels_last else made.transpose(0, 3, 1, 2)


def _scene(rng: np.random.Generator, height: int, width: int, channels: int) -> Values:
    """Waves of light with ellipses and rectangles of one colour before them, (H, W, C)."""
    down, across = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    light = np.zeros((height, width, channels))
    for frequency in range(1, _WAVES + 1):
        slope = rng.normal(size=2) * frequency
        phases = rng.uniform(0, 2 * np.pi, channels)
        light += np.cos(2 * np.pi * (slope[0] * down + slope[1] * across)[..., None] + phases) / frequency
    scene = 0.5 + 0.15 * light
    for index in range(_SHAPES):
        middle = rng.uniform(0, 1, 2)
        size = rng.uniform(0.05, 0.3, 2)
        distances = np.abs(down - middle[0]) / size[0], np.abs(across - middle[1]) / size[1]
        inside = np.hypot(*distances) < 1 if index % 2 else np.maximum(*distances) < 1
        scene[inside] = 0.3 * scene[inside] + 0.7 * rng.uniform(0, 1, channels)
    return np.clip(scene + _NOISE * rng.standard_normal(scene.shape), 0, 1)


def sound(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Draw sounds with values in -1..1, with the samples along the longest axis: a voice that speaks some notes."""
    axis = int(np.argmax(shape))
    length = shape[axis]
    others = shape[:axis] + shape[axis + 1 :]
    made = np.stack([_voice(rng, length) for _ in range(int(np.prod(others)))])
    return np.moveaxis(made.reshape(*others, length), -1, axis)


def _voice(rng: np.random.Generator, length: int) -> Values:
    """Notes with harmonics; each begins at once and fades."""
    samples = np.arange(length)
    ends = np.linspace(0, length, _NOTES + 1)
    voice = np.zeros(length)
    for begin, end in pairwise(ends):
        inside = (samples >= begin) & (samples < end)
        fade = np.exp(-3 * (samples[inside] - begin) / (end - begin))
        pitch = rng.uniform(*_PITCH)
        for harmonic in range(1, _HARMONICS + 1):
            wave = np.sin(2 * np.pi * (pitch * harmonic * samples[inside] + rng.uniform()))
            voice[inside] += fade * wave / harmonic
    return np.clip(_LOUDNESS * voice + _NOISE * _LOUDNESS * rng.standard_normal(length), -1, 1)
