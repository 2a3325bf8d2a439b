"""Compare the latencies of several runtimes on one model.

A turn starts a new process for each runtime. They import these together, and load the model one by one, as their users
do. Then the processes are timed one after the other, for a tenth of a second each, over and over. Only one of them runs
at any time, and it begins when the threads of the one before sleep. So no runtime is slowed down by another, and a
machine that is slow for a second or for a minute slows all of them.
"""

from __future__ import annotations

import contextlib
import math
import operator
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.options import Constant, InputSpec
from autotune.processes.memory import memory_bytes
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.timing import timed_process
from autotune.tvm_backend.export.timing.kernel_times import KernelTime
from autotune.tvm_backend.export.timing.runtime_process import RuntimeProcess

TIMINGS = 4  # in one process
_LONG_S = 60.0  # that all turns together may take
_SLOW_S = 5.0  # a runtime outside of the pair whose process takes longer is timed in one turn only
_MAX_TURNS = 15  # of two runtimes whose ratio is uncertain
_UNCERTAIN = 1.05  # the upper end of a ratio's interval divided by the lower, above which it is uncertain
_CONFIDENCE = 0.9
_AGREEING_TURNS = 3  # that end a comparison early
_AGREEMENT = 1.02  # the largest of their ratios divided by the smallest, at most
_TURN_S = 3.0  # that a turn of a pair may take; when three have taken as long as all may, they are enough
_KERNEL_PROCESSES = 3  # in which kernels are timed, unless the first one is slow
# How many times its file a loaded model takes at most, and how much of the memory all runtimes together may take.
_PEAK = 6
_ROOM = 0.5


@dataclass(frozen=True)
class Runtime:
    """A runtime and the model that it runs.

    Attributes:
        runtime: A key of `timed_process.RUNTIMES`.
        model: The file of the model or of the library.
        device: `cpu` or `cuda`.
        values: The constant inputs of the model, by name.
        function: The function of the library that is run.
        kept: The inputs that it changes in place, which it is handed again as they are.
        threads: How many threads it uses; 0 for as many as the others of its comparison.
    """

    runtime: str
    model: Path
    device: str = "cpu"
    values: Mapping[str, Constant] = field(default_factory=dict)
    function: str = "main"
    kept: tuple[str, ...] = ()
    threads: int = 0


@dataclass
class RuntimeTimes:
    """The latencies of one runtime.

    Attributes:
        timings_ms: For each process, its timings in milliseconds.
        loads_ms: For each process, the time from the file of the model to its first outputs, in milliseconds.
        memory: For each process, the peak of the memory that the model took, in bytes.
        kernels: For some processes, the times of its kernels.
    """

    timings_ms: list[tuple[float, ...]] = field(default_factory=list)
    loads_ms: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    kernels: list[list[KernelTime]] = field(default_factory=list)

    @property
    def turns_ms(self) -> list[float]:
        """For each process, the median of its timings in milliseconds."""
        return [statistics.median(timings) for timings in self.timings_ms]

    @property
    def median_ms(self) -> float:
        """The median over the processes."""
        return statistics.median(self.turns_ms)

    @property
    def spread_ms(self) -> tuple[float, float]:
        """The times of the fastest and the slowest process."""
        return min(self.turns_ms), max(self.turns_ms)

    def fastest_kernels(self) -> list[KernelTime]:
        """Return the kernels' times in the fastest process, in which they are shortest together.

        A process takes a moment, and the machine may be slow just then. The kernel that takes most comes first.
        """
        return min(self.kernels, key=lambda kernels: sum(kernel.us for kernel in kernels), default=[])


class RuntimeComparison:
    """Runs several runtimes on the same inputs.

    Its `with` block owns the temporary folder for inputs and outputs.

    Args:
        runtimes: The runtimes by name.
        inputs: The inputs of the model.
        arrays: The value of each input, in the same order.
        threads: How many threads each runtime uses that does not say it itself.
        program: What Python is to run in each process: `timed_process`, or a script that adds runtimes to it.
    """

    def __init__(
        self,
        runtimes: Mapping[str, Runtime],
        inputs: Sequence[InputSpec],
        arrays: runners.Arrays,
        threads: int,
        program: Sequence[str] = ("-m", timed_process.__name__),
    ) -> None:
        self._program = program
        self._runtimes = runtimes
        self._names = [item.name for item in inputs]
        self._arrays = arrays
        self._threads = threads
        self._folder = scratch_folder("comparison")
        self._inputs = Path(self._folder.name) / "inputs.npy"

    def __enter__(self) -> RuntimeComparison:
        timed_process.save(self._inputs, self._arrays)
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def outputs(self, name: str) -> runners.Arrays:
        """Return the outputs that a runtime computes, in the order of the model.

        Raises:
            WorkerError: The runtime cannot run the model.
            WorkerCrashed: The process died.
        """
        path = Path(self._folder.name) / f"{name}.npy"
        with self._start(name, path) as process:
            process.imported()
            process.load()
            return timed_process.load(path)

    def time(
        self,
        timings: int,
        pair: tuple[str, str] | None = None,
        without: Collection[str] = (),
        once: Collection[str] = (),
        longest_s: float = _LONG_S,
        kernels_of: str = "",
    ) -> dict[str, RuntimeTimes]:
        """Time the runtimes.

        Args:
            timings: How many timings each runtime gets. A process makes up to four of them.
            pair: Two runtimes whose ratio is wanted. The turns end early when three or more agree on it within 2%, or
                have taken as many times 3 s as turns were asked for. They go on, up to 15 in all, as long as its median
                is uncertain by more than 5% and that time is not over. A runtime outside of the pair whose process
                takes more than 5 s gets one turn, so that the time is left to the pair.
            without: The names of those that are not timed.
            once: The names of those that are timed in the first turn only.
            longest_s: The seconds that all turns together may take, after the first: none begins that would end later
                if it took as long as the longest before.
            kernels_of: A library whose kernels are timed, too, in three of its processes, or in one if that is slow.

        Returns:
            The times by the name of the runtime.

        Raises:
            WorkerError: A runtime cannot run the model.
            WorkerCrashed: A process died.
        """
        times = {name: RuntimeTimes() for name in self._runtimes if name not in without}
        began = time.monotonic()
        names = list(times)
        turns = max(1, -(-timings // TIMINGS))
        passed_s = longest_turn_s = 0.0
        for turn in range(max(turns, _MAX_TURNS) if pair else turns):
            longest_turn_s = max(longest_turn_s, time.monotonic() - began - passed_s)
            passed_s = time.monotonic() - began
            if turn and passed_s + longest_turn_s > longest_s:
                break
            if pair and _is_enough(ratios(times[pair[0]], times[pair[1]]), turns, passed_s):
                break
            if pair and turn >= turns:
                names = list(pair)
            slow = self._turn(names[:: -1 if turn % 2 else 1], min(timings, TIMINGS), times, kernels_of)
            if kernels_of in slow or turn + 1 >= _KERNEL_PROCESSES:
                kernels_of = ""
            names = [name for name in names if name not in slow or name in pair] if pair else names
            names = [name for name in names if name not in once]
        return times

    def _turn(self, names: Sequence[str], timings: int, times: Mapping[str, RuntimeTimes], kernels_of: str) -> set[str]:
        """Time the runtimes in new processes, and return those whose process was slow."""
        slow = set[str]()
        for together in [names] if self._fit(names) else [[name] for name in names]:
            with contextlib.ExitStack() as stack:
                processes = {name: stack.enter_context(self._start(name)) for name in together}
                for process in processes.values():
                    process.imported()
                for name, process in processes.items():
                    loaded = process.load()
                    times[name].loads_ms.append(loaded["load_ms"])
                    times[name].memory.append(loaded["memory"])
                for name, timings_ms in alternating(processes, timings).items():
                    times[name].timings_ms.append(timings_ms)
                if kernels_of in processes:
                    kernels = processes[kernels_of].kernels()
                    times[kernels_of].kernels.append([KernelTime(**item) for item in kernels])
                slow |= {name for name, process in processes.items() if process.waited_s > _SLOW_S}
        return slow

    def _fit(self, names: Sequence[str]) -> bool:
        """Whether the memory is large enough for all these runtimes at once.

        The largest file counts. That is the library where the ONNX file leaves its data in others.
        """
        largest = max(runtime.model.stat().st_size for runtime in self._runtimes.values())
        return _PEAK * largest * len(names) < _ROOM * memory_bytes()

    def _start(self, name: str, outputs: Path | None = None) -> RuntimeProcess:
        runtime = self._runtimes[name]
        threads = runtime.threads or self._threads
        request = {
            "runtime": runtime.runtime,
            "model": str(runtime.model),
            "names": self._names,
            "inputs": str(self._inputs),
            "device": runtime.device,
            "function": runtime.function,
            "kept": list(runtime.kept),
            "values": dict(runtime.values),
            "threads": threads,
            "outputs": str(outputs) if outputs else None,
        }
        return RuntimeProcess(name, request, threads, self._program)


def alternating(processes: Mapping[str, RuntimeProcess], timings: int) -> dict[str, tuple[float, ...]]:
    """Time processes one after the other, so many times, and every second time in the opposite order.

    Returns:
        The timings of each in milliseconds. A slow model has fewer.
    """
    timings_ms: dict[str, list[float]] = {name: [] for name in processes}
    for index in range(timings):
        for name in list(processes)[:: -1 if index % 2 else 1]:
            if (value := processes[name].time()) is not None:
                timings_ms[name].append(value)
    return {name: tuple(values) for name, values in timings_ms.items()}


def ratios(ours: RuntimeTimes, other: RuntimeTimes) -> list[float]:
    """Return our time as a fraction of another runtime's, for each turn: the median over the timings of the turn.

    Two timings of a pair are taken one right after the other, so a machine that is slow for a while slows both.
    """
    turns = zip(ours.timings_ms, other.timings_ms, strict=True)
    return [statistics.median(map(operator.truediv, mine, theirs)) for mine, theirs in turns]


def _is_enough(values: Sequence[float], turns: int, passed_s: float) -> bool:
    """Whether a pair needs no further turn, of which so many were asked for, after so many seconds."""
    if len(values) >= _AGREEING_TURNS and passed_s > turns * _TURN_S:
        return True
    return _agree(values) or (len(values) >= turns and not _is_uncertain(values))


def _agree(values: Sequence[float]) -> bool:
    """Whether so many turns say the same that another would hardly change their median."""
    return len(values) >= _AGREEING_TURNS and max(values) <= _AGREEMENT * min(values)


def _is_uncertain(values: Sequence[float]) -> bool:
    """Whether the interval that holds the median with a confidence of 90% is wider than 5%.

    Its ends are the k-th smallest and the k-th largest value, for the largest k that the binomial distribution allows
    (the sign test's interval). Fewer than five values have no such interval: who asks for so few wants no more.
    """
    count = len(values)
    left_out = 0
    outside = 0.5 ** len(values)
    if 2 * outside > 1 - _CONFIDENCE:
        return False
    while 2 * (outside + math.comb(count, left_out + 1) * 0.5**count) <= 1 - _CONFIDENCE:
        left_out += 1
        outside += math.comb(count, left_out) * 0.5**count
    ordered = sorted(values)
    return ordered[-1 - left_out] > _UNCERTAIN * ordered[left_out]
