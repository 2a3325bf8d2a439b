#!/usr/bin/env python
"""Compare programs that others wrote, with ONNX Runtime and with `autotune.onnxruntime` in its place.

    pip install rapidocr nudenet silero-vad opencv-python-headless matplotlib
    python scripts/bench/compare_programs.py rapidocr nudenet silero-vad

Their models have been exported with `--register` on this machine before; docs/guides/onnxruntime.md has the commands.
Each program runs in processes of its own, by turns with either module under the name `onnxruntime`. Times are medians
with their range: of the whole process from its start to its end, and of the calls of the program alone, after a first
one. `runs` says for which models a library ran, `same` whether all text, boxes and times are the same. An idle machine
is needed, and two minutes for five turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_LINES = ("Autotune compiles models", "for the machine they run on", "Invoice 2024-1187", "Total: 1,284.50 EUR")
_RATE = 16_000
_SECONDS = 20
_SYLLABLES_S = 5
_VOWELS = ((700, 1220, 2600), (300, 2300, 3000), (400, 800, 2600), (500, 1800, 2500))  # their resonances in hertz
_CALLS = 5
_MODULES = ("onnxruntime", "autotune.onnxruntime")


def page() -> Any:
    """Draw a page of text."""
    import cv2
    import numpy as np

    image = np.full((480, 640, 3), 255, np.uint8)
    for number, line in enumerate(_LINES):
        place = (30, 80 + 100 * number)
        cv2.putText(image, line, place, cv2.FONT_HERSHEY_SIMPLEX, 1.1, (0, 0, 0), 2, cv2.LINE_AA)
    return image


def portrait() -> Any:
    """The photograph of Grace Hopper that matplotlib brings along, which is in the public domain."""
    import cv2
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    return cv2.imread(str(path))


def voice() -> Any:
    """Synthesise vowels and pauses: a pulse train through the resonances of each."""
    import numpy as np
    from scipy.signal import lfilter

    count = _RATE * _SECONDS
    time_s = np.arange(count) / _RATE
    pitch = 120 + 20 * np.sin(2 * np.pi * 0.7 * time_s) + 8 * np.sin(2 * np.pi * 5 * time_s)
    pulses = np.diff(np.floor(np.cumsum(pitch / _RATE)), prepend=0.0)
    syllables = (time_s * _SYLLABLES_S).astype(int) % len(_VOWELS)
    sound = np.zeros(count)
    for number, resonances in enumerate(_VOWELS):
        vowel = pulses
        for frequency, width in zip(resonances, (80, 90, 120), strict=True):
            radius = np.exp(-np.pi * width / _RATE)
            angle = 2 * np.pi * frequency / _RATE
            vowel = lfilter([1.0], [1.0, -2 * radius * np.cos(angle), radius**2], vowel)
        sound += np.where(syllables == number, vowel / np.abs(vowel).max(), 0.0)
    loudness = 0.3 + 0.7 * np.abs(np.sin(np.pi * _SYLLABLES_S * time_s))
    speaks = np.sin(2 * np.pi * 0.2 * time_s) > 0
    return (0.5 * sound * loudness * speaks).astype(np.float32)


def read_page() -> Callable[[], Any]:
    """Return what reads the text of a page with rapidocr: three models."""
    from rapidocr import RapidOCR

    engine = RapidOCR()
    image = page()

    def run() -> Any:
        result = engine(image)
        return [list(result.txts), result.boxes.tolist()]

    return run


def find_parts() -> Callable[[], Any]:
    """Return what finds faces and bodies in a photograph with nudenet."""
    from nudenet import NudeDetector

    detector = NudeDetector()
    image = portrait()
    return lambda: [[item["class"], item["box"]] for item in detector.detect(image)]


def find_speech() -> Callable[[], Any]:
    """Return what finds the speech in a sound with silero-vad."""
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    torch.set_num_threads(1)
    model = load_silero_vad(onnx=True)
    sound = torch.from_numpy(voice())
    return lambda: get_speech_timestamps(sound, model)


PROGRAMS = {"rapidocr": read_page, "nudenet": find_parts, "silero-vad": find_speech}


def run_program(name: str, module: str) -> None:
    """Run a program in this process, and print what it says and how long its calls take, as JSON."""
    sys.modules["onnxruntime"] = __import__(module, fromlist=["InferenceSession"])
    call = PROGRAMS[name]()
    answer = call()
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    print(json.dumps({"answer": answer, "call_s": statistics.median(times)}), flush=True)


def turn(name: str, module: str) -> dict[str, Any]:
    """Run a program in a process of its own; return what it printed, its time, and what it said of its models."""
    began = time.perf_counter()
    words = [sys.executable, __file__, "--run", name, module]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    whole_s = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"compare_programs.py: {name} with {module} failed: {done.stderr.strip().splitlines()[-1]}")
    said = [line for line in done.stderr.splitlines() if line.startswith("autotune: ")]
    return {**json.loads(done.stdout.splitlines()[-1]), "whole_s": whole_s, "said": said}


def _shown(values: Sequence[float], scale: float) -> str:
    scaled = [value * scale for value in values]
    return f"{statistics.median(scaled):.3g} ({min(scaled):.3g} to {max(scaled):.3g})"


def row(name: str, turns: int, tell: bool) -> str:
    """Return the line of the table for a program."""
    runs: dict[str, list[dict[str, Any]]] = {module: [] for module in _MODULES}
    for _ in range(turns):
        for module in _MODULES:
            runs[module].append(turn(name, module))
    before, after = runs.values()
    said = after[0]["said"]
    if tell:
        print(*said, json.dumps(after[0]["answer"]), sep="\n", file=sys.stderr)
    in_library = sum(" runs in the library " in line for line in said)
    models = sum(" runs in " in line and "does not take" not in line for line in said)
    same = all(item["answer"] == before[0]["answer"] for item in (*before, *after))
    cells = [
        f"{in_library} of {models}",
        _shown([item["call_s"] for item in before], 1e3),
        _shown([item["call_s"] for item in after], 1e3),
        _shown([item["whole_s"] for item in before], 1),
        _shown([item["whole_s"] for item in after], 1),
        "yes" if same else "NO",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", choices=PROGRAMS, metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tell", action="store_true", help="say what each program answered, and what ran its models")
    options = parser.parse_args()
    print("| program | library runs | ms a call before | after | s for the process before | after | same |")
    print("|---|---|---|---|---|---|---|")
    for name in options.programs:
        print(row(name, options.turns, options.tell), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run_program(*sys.argv[2:4])
    else:
        main()
