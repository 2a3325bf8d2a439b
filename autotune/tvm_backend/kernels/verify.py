"""Check that a kernel computes what its unscheduled task computes, on random inputs.

The reference is the task's own tensor program, compiled without any schedule and run once on the CPU. What it
leaves in the arguments that it writes is kept on disk; the inputs are made anew, from their seed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import WrongResult
from autotune.storage.atomic import make_folders, publish_bytes
from autotune.tvm_backend.vector_math import intrinsics

Array = npt.NDArray[Any]

FORMAT = ("autotune-reference", 1)
# How far another order of additions may lead, relative to the largest value of the output.
_TOLERANCE = {"float64": 1e-8, "float32": 1e-4, "float16": 3e-2}
_COARSE = 0.1  # of other floats: fp8
_ROUNDED = 1e-3  # share of an integer output that may differ where it was made from floats
_PERIOD = 65_521  # a prime, so that repeated values line up with no tile
_SEED = 1
_GUARD = 4096
_ALIGNED = 64
_MARK = 0xA5
_NESTED = re.compile(r"\w\[[^\]]*\w\[")


@dataclass(frozen=True)
class Reference:
    """What a task leaves in its arguments; `problem` says why that is not known, for a task that cannot be checked.

    `args` are dtype and dimensions of each argument, `outputs` the arguments that it writes, by index. Inputs are
    `positive` where the program gives no number otherwise (a root, a logarithm), and integers are zero where it
    uses a value as an index, which a random one would send anywhere.
    """

    args: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outputs: Mapping[int, Array] = field(default_factory=dict)
    positive: bool = False
    indexes: bool = False
    problem: str = ""


def compute(program: Any, description: Mapping[str, Any]) -> Reference:
    """Compile and run a task without a schedule, on the CPU that the target description names.

    Elementary functions come from the C library, so that our own formulas are checked, too.

    Raises:
        Exception: whatever TVM raises for a program that it cannot compile so.
    """
    import tvm

    # It runs once or twice: more optimisation costs more time than it saves, and a linker is not needed.
    target = tvm.target.Target({**description, "opt-level": 1, "jit": "orcjit"})
    with intrinsics.library_functions():
        main = tvm.driver.build(program, target=target)["main"]
    args, indexes = _arguments(program), bool(_NESTED.search(program.script()))
    found = _run(main, args, False, indexes)
    if not all(np.isfinite(array).all() for array in found.outputs.values()):
        found = _run(main, args, True, indexes)
    return found


def _arguments(program: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    found = ArgInfo.from_entry_func(program, remove_preproc=True)
    return tuple((str(item.dtype), tuple(int(dim) for dim in item.shape)) for item in found)


def _run(main: Any, args: tuple[tuple[str, tuple[int, ...]], ...], positive: bool, indexes: bool) -> Reference:
    import tvm

    inputs = _inputs(args, positive, indexes)
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    main(*tensors)
    left = [tensor.numpy() for tensor in tensors]
    changed = [index for index, array in enumerate(inputs) if array.tobytes() != left[index].tobytes()]
    return Reference(args, {index: left[index] for index in changed}, positive, indexes)


def _inputs(args: Sequence[tuple[str, tuple[int, ...]]], positive: bool, indexes: bool) -> list[Array]:
    """Seeded arguments: normal floats, fair booleans, small integers."""
    rng = np.random.default_rng(_SEED)
    normal = rng.standard_normal(_PERIOD, np.float32)
    values: dict[str, Array] = {"f": np.abs(normal) + np.float32(0.1) if positive else normal}
    values["i"] = rng.integers(0 if positive else -8, 8, _PERIOD)
    values["u"], values["b"] = rng.integers(0, 16, _PERIOD), rng.integers(0, 2, _PERIOD)
    if indexes:
        values.update({kind: np.zeros(1, np.int64) for kind in "iu"})
    found = []
    for number, (dtype, dims) in enumerate(args):
        shifted = np.roll(values[np.dtype(dtype).kind].astype(dtype), 101 * number)  # no two arguments alike
        found.append(np.resize(shifted, dims))
    return found


def save(path: Path, reference: Reference) -> None:
    """Publish a reference."""
    buffer = io.BytesIO()
    name, version = FORMAT
    meta = {"format": name, "version": version, "args": reference.args, "positive": reference.positive}
    meta.update(indexes=reference.indexes, problem=reference.problem)
    arrays = {f"output{index}": array for index, array in reference.outputs.items()}
    np.savez(buffer, allow_pickle=False, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
    make_folders(path.parent)
    publish_bytes(path, buffer.getvalue())


def load(path: Path) -> Reference | None:
    """What `save` published; None where there is none that can be used."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            meta = json.loads(bytes(stored["meta"]))
            outputs = {int(name[6:]): stored[name] for name in stored.files if name != "meta"}
            args = tuple((str(dtype), tuple(dims)) for dtype, dims in meta["args"])
        if (meta["format"], meta["version"]) == FORMAT:
            return Reference(args, outputs, bool(meta["positive"]), bool(meta["indexes"]), str(meta["problem"]))
    except Exception:  # derived data: whatever is wrong with it, it is computed again
        pass
    return None


@dataclass
class Verifier:
    """Checks kernels of one task on one device."""

    reference: Reference
    device: Any

    def check(self, main: Any) -> None:
        """Run a kernel once and compare everything it leaves behind.

        Raises:
            WrongResult: a value is wrong, an input was changed, or something beside an argument was written.
        """
        reference = self.reference
        inputs = _inputs(reference.args, reference.positive, reference.indexes)
        guards = [_Guarded(array) for array in inputs] if str(self.device).startswith("cpu") else []
        tensors = [guard.tensor for guard in guards] if guards else [self._tensor(array) for array in inputs]
        main(*tensors)
        self.device.sync()
        floats = [dtype for dtype, _ in reference.args if np.dtype(dtype).kind == "f"]
        # One that reads halves may compute in them, on tensor cores say, whatever it writes.
        allowed = max((_TOLERANCE.get(dtype, _COARSE) for dtype in floats), default=None)
        for index, tensor in enumerate(tensors):
            if guards and guards[index].harmed():
                raise WrongResult(f"wrote beyond the bounds of argument {index}")
            expected = reference.outputs.get(index)
            if expected is not None:
                _compare(index, tensor.numpy(), expected, allowed)
            elif tensor.numpy().tobytes() != inputs[index].tobytes():
                raise WrongResult(f"changed argument {index}, which is an input")

    def check_library(self, library: Path) -> None:
        """Check the kernel in a library that `build_library` wrote. Raises as `check` does."""
        import tvm

        self.check(tvm.runtime.load_module(str(library))["main"])

    def _tensor(self, array: Array) -> Any:
        import tvm

        return tvm.runtime.tensor(array, device=self.device)


class _Guarded:
    """A tensor on the CPU with marked memory on both sides."""

    def __init__(self, array: Array) -> None:
        import tvm

        self._raw = np.full(array.nbytes + 2 * _GUARD + _ALIGNED, _MARK, np.uint8)
        self._start = -self._raw.ctypes.data % _ALIGNED + _GUARD
        self._end = self._start + array.nbytes
        inside = self._raw[self._start : self._end].view(array.dtype).reshape(array.shape)
        inside[...] = array
        self.tensor = tvm.runtime.from_dlpack(inside)

    def harmed(self) -> bool:
        return bool((self._raw[: self._start] != _MARK).any() or (self._raw[self._end :] != _MARK).any())


def _compare(index: int, found: Array, expected: Array, allowed: float | None) -> None:
    """Compare one output. `allowed` is the relative error of floats; None if the task has to do with integers only."""
    if expected.dtype.kind != "f" or allowed is None:
        differ = float((found != expected).mean())
        if differ > (0.0 if allowed is None else _ROUNDED):
            raise WrongResult(f"output {index} is wrong: {differ:.2%} of its values differ")
        return
    wide, truth = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(truth)
    if not np.array_equal(np.isfinite(wide), finite):
        raise WrongResult(f"output {index} is wrong: not finite where it should be, or the reverse")
    if not finite.any():
        return
    scale = max(float(np.abs(truth[finite]).max()), 1e-6)
    error = float(np.abs(wide - truth)[finite].max()) / scale
    if error > allowed:
        raise WrongResult(f"output {index} is wrong: relative error {error:.2g}, allowed {allowed:g}")
