"""How often the guard of measurements calls one disturbed, and whether it was: one kernel again and again.

python scripts/measure_guard.py [--seconds 150]

Where nothing else runs every call is a false alarm, unless the kernel was slower. So each call is held against the time
of the kernel: the usual one is the median of the measurements that nothing was said about. A moment counts as idle if
others used less than 2% of the CPUs in the three seconds around it. The kernel uses all CPUs for some microseconds; a
measurement has the settings of a stage, and is not repeated.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.config import Config
from autotune.machine.disturbance import Quiet
from autotune.stages.guard import Watch

# A measurement was slow if the kernel took so many times as long as usual.
SLOW = 1.1
AROUND_S, IDLE = 1.5, 0.02
SIZE = 1 << 15


@dataclass(frozen=True)
class Measured:
    """One measurement.

    Attributes:
        reason: What was said about it; empty if nothing was.
        time_us: The median time of the kernel.
        at: When it began, in seconds.
        others_s: The CPU seconds that others had used until then, on all CPUs.
    """

    reason: str
    time_us: float
    at: float
    others_s: float

    @property
    def share(self) -> float:
        """The number in the reason, in percent."""
        return float(re.findall(r"[\d.]+", self.reason)[0])

    @property
    def kind(self) -> str:
        return re.sub(r"\d[\d.]*%?", "#", self.reason)


def build(folder: Path) -> Path:
    """Build the kernel: the square roots of an array, on all CPUs."""
    import tvm
    from tvm import te

    from autotune.tvm_backend.kernels.build import build_library
    from autotune.tvm_backend.target import resolve_target

    a = te.placeholder((SIZE,), name="a")
    program = te.create_prim_func([a, te.compute((SIZE,), lambda i: te.sqrt(te.sqrt(a[i]) + 1.0), name="b")])
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": program}))
    (loop,) = schedule.get_loops(schedule.get_sblock("b"))
    outer, inner = schedule.split(loop, [None, 16])
    schedule.parallel(outer)
    schedule.vectorize(inner)
    path = folder / "kernel.so"
    target = tvm.target.Target(resolve_target("llvm", threads=len(os.sched_getaffinity(0))).description)
    build_library(schedule.mod, target, path)
    return path


def measure(library: Path, seconds: float) -> list[Measured]:
    """Measure the kernel under the eyes of the guard, again and again."""
    from autotune.tvm_backend.kernels.run import Runner, Timing, open_device

    settings, cpus = Config().measure, tuple(sorted(os.sched_getaffinity(0)))
    runner = Runner(open_device("llvm"), Timing(settings.warmup, settings.repeats, settings.min_repeat_ms))
    args: list[Any] = [["TENSOR", "float32", [SIZE]]] * 2
    runner.time(library, args, None)
    found, quiet, until = list[Measured](), Quiet(), time.monotonic() + seconds
    while time.monotonic() < until:
        watch = Watch.begin(cpus, quiet)
        times = runner.time(library, args, None)
        reason, sentinel_us = watch.end()
        counters = watch.counters
        found.append(Measured(reason, statistics.median(times), counters.at, counters.busy - counters.ours))
        if sentinel_us:  # as a stage does
            quiet = quiet.with_time(sentinel_us)
    return found


def idle(found: Sequence[Measured], cpus: int) -> list[Measured]:
    """Return the measurements around which others used next to nothing."""
    quiet = []
    for item in found:
        around = [other for other in found if abs(other.at - item.at) <= AROUND_S]
        seconds = around[-1].at - around[0].at
        if seconds > AROUND_S and around[-1].others_s - around[0].others_s < IDLE * cpus * seconds:
            quiet.append(item)
    return quiet


def report(title: str, found: Sequence[Measured]) -> None:
    called = [item for item in found if item.reason]
    print(f"{title}: {len(found)} measurements, {len(called)} called disturbed")
    if not found:
        return
    usual = statistics.median([item.time_us for item in found if not item.reason] or [item.time_us for item in found])
    for kind, count in Counter(item.kind for item in called).most_common():
        of_kind = [item for item in called if item.kind == kind]
        times = [item.time_us / usual for item in of_kind]
        shares = [round(value) for value in statistics.quantiles([item.share for item in of_kind] * 2)]
        print(f"    {count:4}  {kind}; quartiles {shares[0]}, {shares[1]} and {shares[2]}%")
        false = sum(value < SLOW for value in times)
        print(f"          {statistics.median(times):.2f} of the usual time; {false} of them false alarms")
    missed = [item.time_us / usual for item in found if not item.reason and item.time_us >= SLOW * usual]
    most = max(missed, default=1.0)
    print(f"    {len(missed):4}  of the others took {SLOW} of the usual time or more, at most {most:.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=150.0)
    given = options.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory(prefix="measure-guard-") as folder:
        found = measure(build(Path(folder)), given.seconds)
    report("at any time", found)
    report("while nothing else ran", idle(found, len(os.sched_getaffinity(0))))


if __name__ == "__main__":
    main()
