"""Time a built library on a device, in a process that may die of it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tvm

from autotune.tvm_backend.kernels.cache_state import BEFORE, READER, Caches, Context
from autotune.tvm_backend.types import Device, DeviceArray, Kernel, PlainArguments, RuntimeModule

# A slow candidate gets fewer repeats. Each limit is a multiple of the best time of the task so far.
FIRST_REPEAT_LIMIT = 3.0  # the first repeat is only made if the first runs are faster than this
_SECOND_REPEAT_LIMIT = 1.3  # the second repeat is only made if a run was faster than this
_NEXT_REPEAT_LIMIT = 1.05  # each further repeat is only made if a run was faster than this
_FIRST_RUNS = 3
_MIN_RUNS = 5  # of a repeat in context
_MAX_RUNS = 100
FILL = "tvm.contrib.random.random_fill_for_measure"


@dataclass(frozen=True)
class Timing:
    """How to time a candidate.

    Attributes:
        warmup: How many runs are made first that do not count.
        repeats: How many times are measured.
        min_repeat_ms: For how many milliseconds a repeat runs at least. Its time is the mean of its runs.
    """

    warmup: int
    repeats: int
    min_repeat_ms: int


@dataclass
class Runner:
    """Times libraries on one device.

    The arguments are kept for the next candidate if its arguments have the same shapes and types.

    Attributes:
        device: The TVM device.
        timing: How to time a candidate.
        context: Where a model has the arguments of the kernels; None to time each in a loop, on warm caches.
    """

    device: Device
    timing: Timing
    context: Context | None = None
    _arguments: dict[str, list[DeviceArray]] = field(default_factory=dict)
    _caches: Caches | None = None

    def time(self, library: Path, args: PlainArguments, best_us: float | None) -> list[float]:
        """Time a candidate.

        A candidate that is clearly slower than the best gets fewer repeats. Three single runs come first. If their
        median is more than 3 times the best time, there are no repeats. If no run takes at most 1.3 times the best
        time, the first repeat is the only one. If no run takes at most 1.05 times the best time, the second repeat is
        the last. AdaTune (Li et al., NeurIPS 2020) also saves repeats, based on the spread of the times so far.

        Args:
            library: The library with the kernel.
            args: The type and the shape of each argument, as TVM's `ArgInfo.as_json` writes them.
            best_us: The best time of the task so far in microseconds; None if there is none.

        Returns:
            The time of a run in microseconds, one value for each repeat. Without repeats, the times of the first runs.
        """
        module = self.load(library)
        tensors = self._tensors(args)
        best = math.inf if best_us is None else best_us
        first = self._first(module, tensors, best)
        if statistics.median(first) > FIRST_REPEAT_LIMIT * best:
            return first
        times: list[float] = []
        while len(times) < self.timing.repeats:
            times += self._repeat(module, tensors, statistics.median(first))
            limit = _SECOND_REPEAT_LIMIT if len(times) == 1 else _NEXT_REPEAT_LIMIT
            if min(*first, *times) > limit * best:
                break
        return times

    def load(self, library: Path) -> RuntimeModule:
        """Load a library that `build_library` wrote, where it is to run."""
        return tvm.runtime.load_module(str(library))

    def _first(self, module: RuntimeModule, tensors: list[DeviceArray], best_us: float) -> list[float]:
        """Microseconds of the first runs, after those that do not count."""
        if self.timing.warmup:
            self._single(module, tensors, self.timing.warmup)
        return self._single(module, tensors, _FIRST_RUNS)

    def _repeat(self, module: RuntimeModule, tensors: list[DeviceArray], first_us: float) -> list[float]:
        if self.context is None:
            return self._evaluate(module, tensors, 1, 1, self.timing.min_repeat_ms)
        runs = int(min(max(1e3 * self.timing.min_repeat_ms / first_us, _MIN_RUNS), _MAX_RUNS))
        return [statistics.median(self._single(module, tensors, runs))]

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return str(self.device.type) == "cpu"

    def time_runs(self, library: Path, args: PlainArguments, runs: int) -> list[float]:
        """Time single runs.

        Args:
            library: The library with the kernel.
            args: The type and the shape of each argument, as for `time`.
            runs: How many runs to time.

        Returns:
            The time of each run, in microseconds.
        """
        return self._single(self.load(library), self._tensors(args), runs)

    def _single(self, module: RuntimeModule, tensors: list[DeviceArray], runs: int) -> list[float]:
        return self._evaluate(module, tensors, 1, runs, 0, self._before(module, tensors))

    def _evaluate(
        self,
        module: RuntimeModule,
        tensors: list[DeviceArray],
        number: int,
        repeats: int,
        min_repeat_ms: int,
        before: str = "",
    ) -> list[float]:
        self.device.sync()
        evaluator = module.time_evaluator(
            "main", self.device, number=number, repeat=repeats, min_repeat_ms=min_repeat_ms, f_preproc=before
        )
        return [float(seconds) * 1e6 for seconds in evaluator(*tensors).results]

    def _before(self, module: RuntimeModule, tensors: list[DeviceArray]) -> str:
        """Return the name of the function that prepares the caches for a run; empty if they stay as they are."""
        if self.context is None:
            return ""
        if self._caches is None or self._caches.context != self.context:
            self._caches = Caches(self.context, tensors)
        caches = self._caches
        read = module[READER]
        tvm.register_global_func(BEFORE, lambda *_: caches.prepare(read), override=True)
        return BEFORE

    def _tensors(self, args: PlainArguments) -> list[DeviceArray]:
        key = repr(args)
        if key not in self._arguments:
            self._arguments.clear()
            self._caches = None
            self._arguments[key] = [self._tensor(str(dtype), [int(d) for d in dims]) for _, dtype, dims in args]
        return self._arguments[key]

    def _tensor(self, dtype: str, dims: list[int]) -> DeviceArray:
        """Return a tensor of random floats. Integers are zero: they may be indices, and random ones out of bounds."""
        if "float" not in dtype:
            return tvm.runtime.tensor(np.zeros(dims, dtype), device=self.device)
        tensor = tvm.runtime.empty(dims, dtype, self.device)
        self._fill()(tensor)
        return tensor

    def _fill(self) -> Kernel:
        """Return the function that fills a tensor with random values."""
        return tvm.get_global_func(FILL)


def open_device(kind: str) -> Device:
    """Return the TVM device that a target runs on: `llvm` on the CPU, or `cuda` on the first GPU of this process."""
    return tvm.cuda(0) if kind == "cuda" else tvm.cpu(0)
