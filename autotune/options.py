"""The options of a submission: what there is, with defaults, bounds and help.

Each option is declared once, as a field of `TuningOptions`. From the declarations follow the options of
`autotune submit`, the keywords of `autotune.submit` and `autotune.tune`, what the spec of a job keeps (`JobOptions`),
what `retry --here` submits again, and the command in a report that repeats the job.

To add one, write its line and its help here. If its value is no plain text, number or flag,
`commands/submit/words.py` says how it is written on a command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal, NamedTuple, cast, get_args

from autotune.errors import BadInput
from autotune.schema import field_types, meta_of, moment, whole_number

AUTO: Final = "auto"
Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
AskedPrecision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "auto"]
Activations = Literal["fp32", "int8"]
# The value of an input that is a constant: a number, or a list of them for an input of one dimension.
Constant = float | list[float]
_MAX_TRIALS = 10**9 - 1  # more would fit in no file, and the planner computes with them
_MAX_PRIORITY = 10**6
_MIN_CONTEXT = 16
_MAX_CONTEXT = 10**6


@dataclass(frozen=True)
class InputSpec:
    """One input of a model, with a fixed shape."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Option(NamedTuple):
    """What is said of an option, where its type and default do not say it.

    Attributes:
        help: What it does, for the command line.
        metavar: How its value is written there; empty for the name of its type.
        flag: Its name there; empty for the name of the field.
        python: What it does, for Python code, where that takes other values; empty for the same words.
    """

    help: str
    metavar: str = ""
    flag: str = ""
    python: str = ""


def _option(default: Any, help: str, metavar: str = "", flag: str = "", python: str = "") -> Any:
    about = {"option": Option(help, metavar, flag, python)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options that the spec of a job keeps under the same name. `JobSpec` extends this class.

    An option that is None was left out: autotune.toml says what it is, or the strategy; or there is no such limit.
    """

    values: Mapping[str, Constant] = _option(
        {},
        "Make an input constant; 1,3,8 for a list.",
        metavar="NAME=16000",
        flag="--value",
        python="The values of inputs that are constants, by their names.",
    )
    trials_per_round: Annotated[int, whole_number(1, most=_MAX_TRIALS)] | None = _option(
        None, "Trials per round; by default as in autotune.toml."
    )
    priority: Annotated[int, whole_number(-_MAX_PRIORITY, most=_MAX_PRIORITY)] = _option(
        0, "Jobs with a higher priority go first."
    )
    seed: Annotated[int, whole_number(0)] = _option(0, "Seed of the search.")
    fresh: bool = _option(False, "Count only trials that are measured from now on.")
    deadline: Annotated[float, moment()] | None = _option(
        None,
        "When the job should be finished: 07:00, or 2026-03-01T07:00.",
        metavar="HH:MM",
        python="When the job should be finished, in epoch seconds.",
    )
    within_s: float | None = _option(
        None,
        "How long to work on it, not counting waits: 90s, 30m or 2h.",
        metavar="30m",
        flag="--within",
        python="How many seconds to work on it, not counting waits.",
    )
    stop_at_ms: float | None = _option(
        None,
        "End when the whole model takes no longer than this.",
        metavar="5ms",
        flag="--stop-at",
        python="End when the whole model takes no longer than this many milliseconds.",
    )
    on_end: str | None = _option(None, "A command that /bin/sh runs when the job has ended.", metavar="COMMAND")
    strategy: str | None = _option(None, "Search strategy; by default as in autotune.toml.")
    sampler: str | None = _option(None, "greedy or adaptive; by default the strategy's own.")
    winograd: bool = _option(
        True, "Use Winograd's algorithm for 3x3 convolutions on CPUs where it should be faster. It is less exact."
    )
    precision: AskedPrecision = _option(
        "fp32",
        "What convolutions and products are computed in. fp16 and tf32: for tensor cores (cuda only); tf32 rounds the"
        " operands of float32 to 10 bits of a fraction. bf16: fast with AMX-BF16, AVX512-BF16, BF16 of Arm, or tensor"
        " cores from sm_80 on. int8: quantises the model, which needs --calibrate. auto: int8 with"
        " --calibrate, else bf16 where the CPU has instructions for it, else fp32.",
    )
    calibrate: str | None = _option(
        None,
        "Samples for --precision int8: an array for each input, by its name, with a row for each sample, and `labels`"
        " if you have them.",
        metavar="FILE.npz",
    )
    max_drop: float | None = _option(
        None,
        "Keep layers of an int8 job in float32 until no more than this part of its top-1 answers on the samples"
        " changes, or its --accuracy falls by no larger part.",
        metavar="1%",
        python="Keep layers of an int8 job in float32 until no more than this part (0 to 1) of its top-1 answers on the"
        " samples changes, or its accuracy falls by no larger part.",
    )
    accuracy: str | None = _option(
        None,
        "How good an int8 job is: prints a number, the greater the better, for the file OUTPUTS.npz that is added to"
        " this command. It has an array for each output, whose first axis counts the runs of the model.",
        metavar="COMMAND",
    )

    plan: str | None = _option(None, "Compute the model as this file says; `autotune plan` prints one.", metavar="FILE")

    memory_mb: float | None = _option(
        None,
        "Refuse the model if its activations need more, in the best order of its kernels.",
        metavar="64MB",
        flag="--memory",
        python="Refuse the model if its activations need more megabytes, in the best order of its kernels.",
    )

    context_tokens: Annotated[int, whole_number(_MIN_CONTEXT, most=_MAX_CONTEXT)] | None = _option(
        None,
        "How many tokens a language model keeps, its prompt included: a GGUF file; by default 2048, or what it was"
        " trained for if that is less.",
        metavar="TOKENS",
        flag="--context",
    )

    activations: Activations = _option(
        "fp32",
        "What activations are where they are multiplied by packed weights, of a GGUF file or of MatMulNBits in ONNX."
        " int8: rounded in blocks, which is faster; the setting tolerance_activations limits what that may cost.",
        metavar="fp32|int8",
    )

    def kept(self) -> dict[str, Any]:
        """Return the options of this class by name."""
        return {option.name: getattr(self, option.name) for option in fields(JobOptions)}


@dataclass(frozen=True, kw_only=True)
class TuningOptions(JobOptions):
    """All options of a submission. Those of this class are in the spec of its job in another form."""

    target: str = _option(
        "llvm",
        "llvm (this CPU, the default), cuda, simulated, the NAME of a section devices.NAME of autotune.toml, or JSON."
        " May be repeated, for a job each.",
        metavar="TARGET",
        python="llvm (this CPU), cuda, simulated, the NAME of a section devices.NAME of autotune.toml, or JSON.",
    )
    name: str | None = _option(None, "Name of the job; by default that of the file.")
    trials: Annotated[int, whole_number(1, most=_MAX_TRIALS)] | Literal["auto"] | None = _option(
        None,
        "How many trials to spend. auto: until more would gain little. By default as in autotune.toml.",
        metavar="N|auto",
    )
    inputs: Mapping[str, Sequence[int] | Sequence[InputSpec]] = _option(
        {},
        "Shape of an input; several shapes are one job.",
        metavar="NAME=1x3x224x224[,...][:float32]",
        flag="--input",
        python="The shapes of inputs whose shape is open, by their names.",
    )
    dims: Mapping[str, int | Sequence[int]] = _option(
        {},
        "Size of the dimensions with this name; several sizes are one job.",
        metavar="NAME=128[,...]",
        flag="--dim",
        python="The sizes of open dimensions, by their names: one, or several for one job.",
    )


def declared(kind: type[JobOptions] = TuningOptions) -> Iterator[tuple[str, Option]]:
    """Yield the name of each option, and what is said of it: those that say what is tuned first."""
    about = {field.name: field.metadata["option"] for field in fields(kind)}
    own = [name for name in kind.__annotations__ if name in about]
    yield from ((name, about[name]) for name in dict.fromkeys([*own, *about]))


def check_numbers(options: TuningOptions) -> None:
    """Check the numbers that the user gave.

    Raises:
        BadInput: One of them is too small or too large.
    """
    about = dict(declared())
    for name, hint in field_types(TuningOptions).items():
        given = getattr(options, name)
        bounds = next(filter(None, map(meta_of, (hint, *get_args(hint)))), None)
        if bounds is None or given is None or given == AUTO:
            continue
        least = cast(float, bounds.ge)
        most = cast(float, bounds.le)
        if not (isinstance(given, int | float) and least <= given <= most):
            flag = about[name].flag or f"--{name.replace('_', '-')}"
            raise BadInput(f"{flag}: give a number from {least} to {most}")
