"""The times of the kernels of a library. The whole model runs meanwhile, so that the caches are as for its users."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.tvm_backend.types import RuntimeModule

_RUNS = 21
_MIN_RUNS = 3
_RUNS_S = 1.0  # after which there are no more runs than those
# What the virtual machine does between kernels. The last returns a weight that lies in the library.
BETWEEN = ("vm.builtin.", "runtime.TVMTensorCreateView", "autotune_weight")


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel in a run of the model.

    Attributes:
        name: The name of its tensor program.
        calls: How often the model runs it.
        us: The median over runs of the time that all its calls take together, in microseconds.
    """

    name: str
    calls: int
    us: float


@dataclass
class _Stopwatch:
    """Called by TVM's virtual machine before and after each function that a model calls.

    Attributes:
        finish: Waits until the device has done what it was given: a GPU only begins when a call returns.
    """

    finish: Callable[[], object]
    totals: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _started: float = 0.0

    def __call__(self, _function: object, name: str, before: bool, _result: object, *_arguments: object) -> int:
        self.finish()
        if before:
            self._started = time.perf_counter()
        else:
            self.totals[name] = self.totals.get(name, 0.0) + time.perf_counter() - self._started
            self.calls[name] = self.calls.get(name, 0) + 1
        return 0


def kernel_times(machine: RuntimeModule, run: Callable[[], object], finish: Callable[[], object]) -> list[KernelTime]:
    """Time the kernels of a model.

    Args:
        machine: TVM's virtual machine, as its runtime has it. It goes on calling the stopwatch, and is slower.
        run: Runs the model once on that machine.
        finish: Waits for the device.

    Returns:
        The kernels, the one that takes most first.
    """
    run()
    runs: list[_Stopwatch] = []
    began = time.perf_counter()
    while len(runs) < (_RUNS if time.perf_counter() - began < _RUNS_S else _MIN_RUNS):
        watch = _Stopwatch(finish)
        machine["set_instrument"](watch)
        run()
        runs.append(watch)
    names = [name for name in runs[0].totals if not name.startswith(BETWEEN)]
    kernels = [
        KernelTime(name, runs[0].calls[name], statistics.median(watch.totals[name] for watch in runs) * 1e6)
        for name in names
    ]
    return sorted(kernels, key=lambda kernel: (-kernel.us, kernel.name))
