"""What quantising a model cost, and what was done to keep that within a limit; a part of the spec of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from autotune.schema import number, positive, whole_number


@dataclass(frozen=True)
class FloatLayer:
    """A layer of a quantised model that stays in floats.

    Attributes:
        name: That of its node.
        error: The error of the model's outputs if nothing but this layer is quantised.
        float_ms: What it takes alone in float32, in ONNX Runtime on one thread.
        quantised_ms: What it takes there in int8.
    """

    name: str
    error: Annotated[float, number()]
    float_ms: Annotated[float, positive()]
    quantised_ms: Annotated[float, positive()]

    @property
    def saved_ms(self) -> float:
        """What quantising it would save."""
        return self.float_ms - self.quantised_ms


@dataclass(frozen=True)
class MixedModel:
    """A model with some layers in floats that was measured to choose them.

    Attributes:
        floats: How many layers are in floats.
        time: The sum of the times of its layers, as a share of that with all in floats.
        error, agreement, score: As in `Quantisation`.
    """

    floats: Annotated[int, whole_number(0)]
    time: Annotated[float, positive()]
    error: Annotated[float, number()]
    agreement: Annotated[float, number(0, 1)]
    score: Annotated[float, number()] | None = None


@dataclass(frozen=True)
class Quantisation:
    """What quantising a model to 8 bits cost, on the data that it was calibrated with.

    Attributes:
        samples: How many inputs there are.
        error: The largest difference of an output from that of the model as submitted, relative to its largest value.
        agreement: For how many of the rows of the first output, as a part of them, the largest element is the same.
        layers: How many convolutions and products could be quantised; 0 if no limit asked to choose among them.
        floats: Those that stay in floats, so that the answers are within the limit.
        curve: The models that were measured to choose them, the fastest first.
        right: Which part of its answers are those of the labels; None without labels.
        right_before: The same of the model as submitted.
        score: What the user's command says of its outputs, the greater the better; None without such a command.
        score_before: The same of the model as submitted.
    """

    samples: Annotated[int, whole_number(1)]
    error: Annotated[float, number()]
    agreement: Annotated[float, number(0, 1)]
    layers: Annotated[int, whole_number(0)] = 0
    floats: tuple[FloatLayer, ...] = ()
    curve: tuple[MixedModel, ...] = ()
    right: Annotated[float, number(0, 1)] | None = None
    right_before: Annotated[float, number(0, 1)] | None = None
    score: Annotated[float, number()] | None = None
    score_before: Annotated[float, number()] | None = None

    @property
    def drop(self) -> float:
        """By which part the score fell; with labels, which part of the answers was right and is wrong now, on balance.

        With neither, which part of the answers changed.
        """
        if self.score is not None and self.score_before is not None:
            lost = self.score_before - self.score
            return lost / abs(self.score_before) if self.score_before else (math.inf if lost > 0 else 0.0)
        if self.right is None or self.right_before is None:
            return 1 - self.agreement
        return self.right_before - self.right

    def within(self, max_drop: float) -> bool:
        """Return whether the drop is no more than this."""
        return self.drop <= max_drop

    def text(self) -> str:
        """Return it as a part of a sentence."""
        kept = f"; {len(self.floats)} of {self.layers} layers stay in float32" if self.floats else ""
        return (
            f"on {self.samples} calibration samples it differs from the model as submitted by {self.error:.2g},"
            f" and agrees in {self.agreement:.1%} of the top-1 answers{self._rightness()}{kept}"
        )

    def _rightness(self) -> str:
        if self.score is not None:
            return f"; by your command it scores {self.score:.4g}, and {self.score_before:.4g} in float32"
        if self.right is None:
            return ""
        return f"; by the labels {self.right:.1%} of its answers are right, and {self.right_before:.1%} were"
