"""Time a built library on a device, in a process that may die of it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# How many times as slow as the best a candidate may be that is timed at all, with one repeat, with all repeats.
_ROUGHLY, _ONCE, _FULLY = 3.0, 1.3, 1.05
_FIRST_RUNS = 3


@dataclass(frozen=True)
class Timing:
    """How to time: `warmup` runs that do not count, then `repeats` means over at least `min_repeat_ms` each."""

    warmup: int
    repeats: int
    min_repeat_ms: int


@dataclass
class Runner:
    """Times libraries on one device; keeps the arguments between candidates of equal argument shapes."""

    device: Any
    timing: Timing
    _arguments: dict[str, list[Any]] = field(default_factory=dict)

    def time(self, library: Path, args: Any, best_us: float | None) -> list[float]:
        """Microseconds per run, one value per repeat.

        Repeats are for those that may be the best. A candidate whose first runs are more than three times as slow as
        `best_us` has these as its times; one of which no run came within 1.3 times after the first repeat, or within
        1.05 times after a later one, gets no more. (AdaTune, Li et al., NeurIPS 2020, spares repeats too, by the
        spread of the times so far.)
        """
        import tvm

        module = tvm.runtime.load_module(str(library))
        tensors = self._tensors(args)
        first = self._first(module, tensors)
        goal = math.inf if best_us is None else best_us
        if statistics.median(first) > _ROUGHLY * goal:
            return first
        times: list[float] = []
        while len(times) < self.timing.repeats:
            times += self._repeat(module, tensors)
            if min(*first, *times) > (_FULLY if len(times) > 1 else _ONCE) * goal:
                break
        return times

    def _first(self, module: Any, tensors: list[Any]) -> list[float]:
        """Microseconds of the first runs, after those that do not count."""
        if self.timing.warmup:
            self._evaluate(module, tensors, number=1, repeats=self.timing.warmup, min_repeat_ms=0)
        return self._evaluate(module, tensors, number=1, repeats=_FIRST_RUNS, min_repeat_ms=0)

    def _repeat(self, module: Any, tensors: list[Any]) -> list[float]:
        return self._evaluate(module, tensors, 1, 1, self.timing.min_repeat_ms)

    @property
    def on_cpu(self) -> bool:
        return str(self.device.type) == "cpu"

    def time_flushed(self, library: Path, args: Any, runs: int) -> list[float]:
        """Microseconds of single runs; before each, all but the first argument is flushed from the CPU's caches.

        So a kernel finds its operands in a whole model: the weights come from memory.
        """
        import tvm

        module = tvm.runtime.load_module(str(library))
        return self._evaluate(module, self._tensors(args), 1, runs, 0, before="cache_flush_cpu_non_first_arg")

    def _evaluate(
        self, module: Any, tensors: list[Any], number: int, repeats: int, min_repeat_ms: int, before: str = ""
    ) -> list[float]:
        self.device.sync()
        evaluator = module.time_evaluator(
            "main", self.device, number=number, repeat=repeats, min_repeat_ms=min_repeat_ms, f_preproc=before
        )
        return [float(seconds) * 1e6 for seconds in evaluator(*tensors).results]

    def _tensors(self, args: Any) -> list[Any]:
        key = repr(args)
        if key not in self._arguments:
            self._arguments.clear()
            self._arguments[key] = [self._tensor(str(dtype), [int(d) for d in dims]) for _, dtype, dims in args]
        return self._arguments[key]

    def _tensor(self, dtype: str, dims: list[int]) -> Any:
        """Random floats; zeros for integers, which may be indices that a random value would send anywhere."""
        import numpy as np
        import tvm

        if "float" not in dtype:
            return tvm.runtime.tensor(np.zeros(dims, dtype), device=self.device)
        tensor = tvm.runtime.empty(dims, dtype, self.device)
        tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")(tensor)
        return tensor


def open_device(kind: str, index: int = 0) -> Any:
    """The device of a target kind: `llvm` runs on the CPU."""
    import tvm

    return tvm.cuda(index) if kind == "cuda" else tvm.cpu(0)
