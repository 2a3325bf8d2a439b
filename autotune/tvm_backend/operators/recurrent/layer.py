"""What a recurrent layer computes, apart from its weights, in the terms of the ONNX operator specification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from autotune.tvm_backend.isa.values import WORD

Kind = Literal["LSTM", "GRU", "RNN"]

GATES: dict[Kind, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAYER = "autotune.recurrent_layer"  # the attribute of a kernel that says what it computes
WEIGHTS = 1  # which argument of the kernel these are
PADDING = 16  # the hidden size is filled up to a multiple of it: whole vectors on any CPU

_DEFAULTS: dict[Kind, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
ALPHA = {"LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "HardSigmoid": 0.2, "Elu": 1.0, "ScaledTanh": 1.0, "Affine": 1.0}
BETA = {"HardSigmoid": 0.5, "ScaledTanh": 1.0, "Affine": 0.0}
_NAMES = {name.lower(): name for name in (*ALPHA, "Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")}


@dataclass(frozen=True)
class Activation:
    """An activation function by its ONNX name, and its parameters where it has any."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class RecurrentLayer:
    """A recurrent layer.

    Attributes:
        kind: The operator.
        steps: How many it takes.
        batch: The number of sequences.
        hidden: The size of a state.
        reverse: For each direction, whether it goes from the last step to the first.
        activations: The functions of each direction.
        clip: The bound of what activations are applied to; 0 for none.
        batch_first: Whether the sequences are the first dimension of inputs and outputs, and not the second.
        late_reset: Whether a GRU resets after the product and not before it (`linear_before_reset`).
        coupled: Whether an LSTM forgets what it does not take in (`input_forget`).
        peepholes: Whether an LSTM's gates see its cells.
        lengths: Whether each sequence has a length of its own.
        rounded: Whether recurrent weights are of 8 bits, and states are rounded to 8 bits where they are multiplied.
    """

    kind: Kind
    steps: int
    batch: int
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float = 0.0
    batch_first: bool = False
    late_reset: bool = False
    coupled: bool = False
    peepholes: bool = False
    lengths: bool = False
    rounded: bool = False

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def directions(self) -> int:
        return len(self.reverse)

    @property
    def padded(self) -> int:
        """The hidden size, filled up to whole vectors."""
        return -(-self.hidden // PADDING) * PADDING

    @property
    def words(self) -> int:
        """How many words a state has in 8 bits."""
        return -(-self.hidden // WORD)

    @property
    def states(self) -> int:
        """How many vectors of `hidden` elements a step hands to the next."""
        return 2 if self.kind == "LSTM" else 1

    @property
    def outputs_shape(self) -> tuple[int, int, int, int]:
        """The shape of the outputs of all steps."""
        if self.batch_first:
            return self.batch, self.steps, self.directions, self.hidden
        return self.steps, self.directions, self.batch, self.hidden

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """The shape of a state of all sequences."""
        if self.batch_first:
            return self.batch, self.directions, self.hidden
        return self.directions, self.batch, self.hidden

    @property
    def products_a_step(self) -> int:
        """Multiplications by recurrent weights in a step of one direction."""
        return prod((self.batch, self.gates, self.hidden, self.hidden))


def activations(
    kind: Kind, directions: int, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> tuple[tuple[Activation, ...], ...]:
    """Return the functions of each direction. Values of alpha and beta are taken by those that have one, in order.

    Args:
        kind: The operator.
        directions: Their number.
        names: Of all functions; the defaults of the operator if there are none.
        alphas: The attribute `activation_alpha`.
        betas: The attribute `activation_beta`.

    Raises:
        ValueError: A function is not known.
    """
    defaults = _DEFAULTS[kind]
    alpha = iter(alphas)
    beta = iter(betas)
    functions = [_activation(name, alpha, beta) for name in names or defaults * directions]
    count = len(defaults)
    return tuple(tuple(functions[index * count : (index + 1) * count]) for index in range(directions))


def _activation(written: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    name = _NAMES.get(written.lower())
    if name is None:
        raise ValueError(f"activation {written!r} is not known")
    alpha = next(alphas, ALPHA[name]) if name in ALPHA else 0.0
    beta = next(betas, BETA[name]) if name in BETA else 0.0
    return Activation(name, alpha, beta)
