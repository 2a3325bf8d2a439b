"""Check on random inputs that a kernel computes the same as its task without a schedule.

The reference is the result of the task's tensor program, compiled without any schedule and run once on the CPU. Its
outputs are kept on disk. The inputs are drawn again from their seed whenever they are needed.
"""

from __future__ import annotations

import ctypes
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.s_tir.meta_schedule.arg_info import ArgInfo

from autotune.errors import WrongResult
from autotune.storage.atomic import make_folders, publish_bytes
from autotune.tvm_backend.cuda import tf32
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, numbers, rounded
from autotune.tvm_backend.types import Device, DeviceArray, IRModule, Kernel
from autotune.tvm_backend.vector_math import registry

Array = npt.NDArray[Any]

FORMAT = ("autotune-reference", 1)
_BFLOAT16 = "bfloat16"  # on GPUs
# The allowed error relative to the largest value of the output: a schedule may add in another order.
_TOLERANCE = {"float64": 1e-8, "float32": 1e-4, "float16": 3e-2, _BFLOAT16: 3e-2, DTYPE: 1e-2}
_TF32 = 2e-3  # the inputs are exact in it, but not what is computed from them before a product
_TF32_LOST_BITS = 13  # of the fraction of a float32
_COARSE = 0.1  # of other floats: fp8
_ROUNDED = 1e-3  # the fraction of an integer output that may differ if it was computed from floats
_PERIOD = 65_521  # a prime: inputs that repeat with it never line up with a tile
_SEED = 1
_GUARD_BYTES = 4096  # before and after each argument
_ALIGNMENT = 64
_GUARD_VALUE = 0xA5
_RUNS_ON_GPU = 3
_NESTED_INDEX = re.compile(r"\w\[[^\]]*\w\[")


@dataclass(frozen=True)
class Reference:
    """The right outputs of a task for random inputs, or the reason why they are not known.

    Attributes:
        args: The element type and the shape of each argument.
        outputs: The right values of the arguments that the task writes, by the index of the argument.
        positive: Whether the inputs are positive. They are if the outputs would not be finite otherwise, as those of a
            logarithm.
        indexes: Whether integer inputs are zero. They are if the task uses values as indices: random ones could be out
            of bounds.
        tf32: Whether products may be computed in TF32. Floats among the inputs are exact in it then, and the allowed
            error is larger for all schedules of the task.
        problem: Why the task cannot be checked; empty if it can.
        tries: How often that was found out.
    """

    args: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outputs: Mapping[int, Array] = field(default_factory=dict)
    positive: bool = False
    indexes: bool = False
    tf32: bool = False
    problem: str = ""
    tries: int = 1


def compute(program: IRModule, description: Mapping[str, Any]) -> Reference:
    """Compile a task without a schedule, run it on the CPU, and return its outputs.

    Elementary functions come from the C library, so that our own formulas are checked too.

    Args:
        program: The tensor program of the task.
        description: The target, as TVM describes it.

    Raises:
        Exception: Whatever TVM raises if it cannot compile the program.
    """
    # It runs once or twice, so more optimisation would cost more time than it saves. No linker is needed.
    target = tvm.target.Target({**description, "opt-level": 1, "jit": "orcjit"})
    with registry.library_functions():
        main = tvm.driver.build(program, target=target)["main"]
    indexes = bool(_NESTED_INDEX.search(program.script()))
    asked = Reference(_arguments(program), indexes=indexes, tf32=tf32.is_allowed(program))
    reference = _run(main, asked)
    if not all(np.isfinite(array).all() for array in reference.outputs.values()):
        reference = _run(main, replace(asked, positive=True))
    return reference


def _arguments(program: IRModule) -> tuple[tuple[str, tuple[int, ...]], ...]:
    arguments = ArgInfo.from_entry_func(program, remove_preproc=True)
    return tuple((str(item.dtype), tuple(int(dim) for dim in item.shape)) for item in arguments)


def _run(main: Kernel, asked: Reference) -> Reference:
    """Return a reference with the outputs of a kernel for its inputs."""
    inputs = _inputs(asked)
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    main(*tensors)
    left = [tensor.numpy() for tensor in tensors]
    changed = [index for index, array in enumerate(inputs) if array.tobytes() != left[index].tobytes()]
    return replace(asked, outputs={index: left[index] for index in changed})


def _inputs(reference: Reference) -> list[Array]:
    """Draw the arguments from their seed: normally distributed floats, small integers, and booleans.

    Elements of uint16 are floats too, in bfloat16: as small integers they would stand for numbers near zero.
    """
    rng = np.random.default_rng(_SEED)
    normal = rng.standard_normal(_PERIOD, np.float32)
    floats = np.abs(normal) + np.float32(0.1) if reference.positive else normal
    values: dict[str, Array] = {"f": _in_tf32(floats) if reference.tf32 else floats}
    values["i"] = rng.integers(0 if reference.positive else -8, 8, _PERIOD)
    values["u"] = rng.integers(0, 16, _PERIOD)
    values["b"] = rng.integers(0, 2, _PERIOD)
    if reference.indexes:
        values.update({kind: np.zeros(1, np.int64) for kind in "iu"})
    arrays = []
    for number, (dtype, dims) in enumerate(reference.args):
        of_kind = rounded(values["f"]) if dtype == DTYPE and not reference.indexes else values[_kind(dtype)]
        shifted = np.roll(of_kind.astype(dtype), 101 * number)  # no two arguments alike
        arrays.append(np.resize(shifted, dims))
    return arrays


def _in_tf32(floats: Array) -> Array:
    return (floats.view(np.uint32) >> _TF32_LOST_BITS << _TF32_LOST_BITS).view(np.float32)


def save(path: Path, reference: Reference) -> None:
    """Write a reference to a file, which appears whole.

    Raises:
        DiskProblem: The file cannot be written.
    """
    buffer = io.BytesIO()
    name, version = FORMAT
    meta = {"format": name, "version": version, "args": reference.args, "positive": reference.positive}
    meta.update(indexes=reference.indexes, tf32=reference.tf32, problem=reference.problem, tries=reference.tries)
    arrays = {f"output{index}": array for index, array in reference.outputs.items()}
    np.savez(buffer, allow_pickle=False, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
    make_folders(path.parent)
    publish_bytes(path, buffer.getvalue())


def load(path: Path) -> Reference | None:
    """Return the reference in a file; None if there is no such file or it cannot be used."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            meta = json.loads(bytes(stored["meta"]))
            args = tuple((str(dtype), tuple(dims)) for dtype, dims in meta["args"])
            arrays = {int(name[6:]): stored[name] for name in stored.files if name != "meta"}
            # NumPy reads bfloat16 as bytes.
            outputs = {index: array.view(args[index][0]) for index, array in arrays.items()}
        if (meta["format"], meta["version"]) == FORMAT:
            flags = (bool(meta["positive"]), bool(meta["indexes"]), bool(meta.get("tf32")))
            tries = int(meta.get("tries", 1))
            return Reference(args, outputs, *flags, str(meta["problem"]), tries)
    except Exception:  # whatever is wrong with the file, the reference can be computed again
        pass
    return None


@dataclass
class Verifier:
    """Checks kernels of one task on one device."""

    reference: Reference
    device: Device

    def check(self, main: Kernel) -> None:
        """Run a kernel, and compare all of its arguments with the reference afterwards.

        It runs once on a CPU. It runs three times on a GPU: a kernel whose threads race is right at times.

        Raises:
            WrongResult: An output is wrong, an input was changed, or the kernel wrote beyond an argument.
        """
        inputs = _inputs(self.reference)
        guards = [self._guarded(array) for array in inputs]
        for _ in range(_RUNS_ON_GPU if self._on_gpu else 1):
            for guard, array in zip(guards, inputs, strict=True):
                guard.fill(array)
            main(*(guard.tensor for guard in guards))
            self.device.sync()
            self._compare(inputs, guards)

    @property
    def _on_gpu(self) -> bool:
        return str(self.device).startswith("cuda")

    def _guarded(self, array: Array) -> _Tensor:
        if str(self.device).startswith("cpu"):
            return _Guarded(array)
        return _GuardedOnDevice(array, self.device) if self._on_gpu else _Tensor(array, self.device)

    def _compare(self, inputs: Sequence[Array], guards: Sequence[_Tensor]) -> None:
        floats = [dtype for dtype, _ in self.reference.args if _is_float(dtype)]
        # One that reads halves may compute in them, on tensor cores say, whatever it writes.
        allowed = max((_TOLERANCE.get(dtype, _COARSE) for dtype in floats), default=None)
        if allowed is not None and self.reference.tf32:
            allowed = max(allowed, _TF32)
        for index, guard in enumerate(guards):
            if guard.overwritten():
                raise WrongResult(f"wrote beyond the bounds of argument {index}")
            expected = self.reference.outputs.get(index)
            if expected is not None:
                _compare(index, guard.tensor.numpy(), expected, allowed)
            elif guard.tensor.numpy().tobytes() != inputs[index].tobytes():
                raise WrongResult(f"changed argument {index}, which is an input")

    def check_library(self, library: Path) -> None:
        """Check the kernel in a library that `build_library` wrote.

        Raises:
            WrongResult: As in `check`.
        """
        self.check(tvm.runtime.load_module(str(library))["main"])


class _Tensor:
    """A tensor without guard areas, as on a board: its memory is out of reach there."""

    tensor: DeviceArray

    def __init__(self, array: Array, device: Device) -> None:
        self.tensor = tvm.runtime.tensor(array, device=device)

    def fill(self, array: Array) -> None:
        """Write the values of the tensor."""
        self.tensor.copyfrom(array)

    def overwritten(self) -> bool:
        """Return whether a guard area was changed."""
        return False


class _Guarded(_Tensor):
    """A tensor on the CPU between two guard areas, which show whether a kernel writes out of bounds."""

    def __init__(self, array: Array) -> None:
        self._raw = np.full(array.nbytes + 2 * _GUARD_BYTES + _ALIGNMENT, _GUARD_VALUE, np.uint8)
        self._start = -self._raw.ctypes.data % _ALIGNMENT + _GUARD_BYTES
        self._end = self._start + array.nbytes
        self._inside = self._raw[self._start : self._end].view(array.dtype).reshape(array.shape)
        self.tensor = tvm.runtime.from_dlpack(self._inside)

    def fill(self, array: Array) -> None:
        """Write the values of the tensor."""
        self._inside[...] = array

    def overwritten(self) -> bool:
        """Return whether a guard area was changed."""
        return _changed(self._raw[: self._start]) or _changed(self._raw[self._end :])


class _GuardedOnDevice(_Tensor):
    """A tensor on a GPU between two guard areas, all in one allocation."""

    def __init__(self, array: Array, device: Device) -> None:
        guarded = np.full(array.nbytes + 2 * _GUARD_BYTES, _GUARD_VALUE, np.uint8)
        self._raw = tvm.runtime.tensor(guarded, device=device)
        self.tensor = _without_offset(self._raw._create_view(array.shape, str(array.dtype), _GUARD_BYTES))
        areas = (0, _GUARD_BYTES + array.nbytes)
        self._areas = [self._raw._create_view((_GUARD_BYTES,), "uint8", start) for start in areas]

    def overwritten(self) -> bool:
        """Return whether a guard area was changed."""
        return any(_changed(area.numpy()) for area in self._areas)


class _DLTensor(ctypes.Structure):
    """The beginning of what a DLPack capsule holds, up to the offset."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


def _without_offset(view: DeviceArray) -> DeviceArray:
    """Return a view whose pointer leads to its first element. TVM's kernels refuse one that begins at an offset."""
    capsule = view.__dlpack__()
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype = ctypes.c_void_p
    address.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(address(capsule, b"dltensor"))
    tensor.data += tensor.byte_offset
    tensor.byte_offset = 0
    return tvm.runtime.from_dlpack(capsule)


def _changed(area: Array) -> bool:
    return bool((area != _GUARD_VALUE).any())


def _kind(dtype: str) -> str:
    """Return NumPy's letter for a kind of numbers: f, i, u or b. It has none for bfloat16."""
    return "f" if dtype == _BFLOAT16 else np.dtype(dtype).kind


def _is_float(dtype: str) -> bool:
    return _kind(dtype) == "f" or dtype == DTYPE


def _wide(array: Array) -> Array:
    return (numbers(array) if str(array.dtype) == DTYPE else array).astype(np.float64)


def _compare(index: int, output: Array, expected: Array, allowed: float | None) -> None:
    """Compare one output. `allowed` is the relative error of floats; None if the task has to do with integers only."""
    if not _is_float(str(expected.dtype)) or allowed is None:
        differ = float((output != expected).mean())
        if differ > (0.0 if allowed is None else _ROUNDED):
            raise WrongResult(f"output {index} is wrong: {differ:.2%} of its values differ")
        return
    wide = _wide(output)
    truth = _wide(expected)
    finite = np.isfinite(truth)
    same = np.array_equal(wide[~finite], truth[~finite], equal_nan=True)
    if not same or not np.isfinite(wide[finite]).all():
        raise WrongResult(f"output {index} is wrong: its infinities and NaNs are not where they should be")
    if not finite.any():
        return
    scale = max(float(np.abs(truth[finite]).max()), 1e-6)
    error = float(np.abs(wide[finite] - truth[finite]).max()) / scale
    if error > allowed:
        raise WrongResult(f"output {index} is wrong: relative error {error:.2g}, allowed {allowed:g}")
