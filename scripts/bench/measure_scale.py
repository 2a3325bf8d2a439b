"""What a large queue and a long tuning log cost: each beside a small one.

python scripts/bench/measure_scale.py [--jobs 10000] [--unfinished 300] [--trials 100000] [--parts daemon,append]

The script makes the workspaces itself, in a temporary folder:
- `daemon`: jobs for a simulated device, of which some have not ended and share four tasks, one of them with a long
  log. The real daemon serves them for a while: how long it takes to start, its memory, and the time of its ticks.
- `shared`: 20 jobs that share four tasks, one with 500 trials.
- `many`: 3,000 unfinished jobs that share four tasks, and 3,000 of four tasks each.
- `append`: one trial after another is added to the log, each by a fresh `TuningLog` and by one that stays.
- `commands`: `status`, `status JOB` and `clean` in the same workspace, with a long and with a short log.
- `search`: one search of a small layer for the CPU, with a long and with a short log (loads TVM).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from autotune.options import InputSpec
from autotune.storage import formats
from autotune.storage.formats import (
    Candidate,
    Control,
    JobSpec,
    JobState,
    StageFile,
    TaskProgress,
    TaskSpec,
    Trial,
    to_json,
)
from autotune.storage.log_lines import encode_line
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT, TuningLog

KEY = "simulated-scale"
SHORT = 64
RECORD_BYTES = 4000
_SETTINGS = """[machine]
lock_dir = "{locks}"
simulated_cpus = 2
[devices.one]
kind = "simulated"
search_s = 0.05
build_s = 0.05
measure_s = 0.05
train_s = 0.05
"""


@dataclass(frozen=True)
class Size:
    """How large the queue is. The jobs share their `tasks`, unless each has its `own`."""

    jobs: int
    unfinished: int
    trials: int
    tasks: int = 4
    own: bool = False


def made_trial(number: int, like: Candidate | None = None) -> Trial:
    """Return the trial of this number: every tenth failed, the others get slowly better."""
    item = like or Candidate("", {"simulated": number}, [])
    slow = 100 + 1e5 / (number + 1) + (number * 7919 % 1000)
    times = () if number % 10 == 9 else (slow, slow * 1.01, slow * 1.02)
    failure = None if times else formats.Failure("build", "timeout", "killed after 20 s")
    return Trial(f"{number:016x}", item.trace, item.args, times, failure, "0001-net", number // 16, float(number))


def write_log(path: Path, count: int, like: Sequence[Candidate] = ()) -> None:
    """Write a log of so many trials, each of some 4,000 bytes, without an index."""
    RecordLog(path, *FORMAT).append([])
    with path.open("ab") as file:
        for number in range(count):
            record = to_json(made_trial(number, like[number % len(like)] if like else None))
            lacking = RECORD_BYTES - len(json.dumps(record))
            file.write(encode_line({**record, "padding": "x" * max(0, lacking)}))
    TuningLog(path).add([made_trial(count, like[0] if like else None)])  # which makes the index


def make_queue(root: Path, size: Size) -> Workspace:
    """Make a workspace with jobs for a simulated device, as a daemon would have left it."""
    workspace = Workspace(root)
    root.mkdir(parents=True)
    workspace.config.write_text(_SETTINGS.format(locks=root / "locks"))
    tasks = tuple(TaskSpec(f"conv{n}", f"{n:016x}", n + 1, "1x8", 0.5, True) for n in range(size.tasks))
    for number in range(size.tasks):
        log = workspace.tuning_log(KEY, tasks[number].hash).records
        log.parent.mkdir(parents=True, exist_ok=True)
        write_log(log, size.trials if number == 0 else SHORT)
    with patch("os.fsync"):
        for id in range(1, size.jobs + 1):
            if size.own:
                tasks = tuple(replace(task, hash=f"{id:08x}{at:08x}") for at, task in enumerate(tasks))
            make_job(workspace, id, tasks, size, ended=id <= size.jobs - size.unfinished)
    return workspace


def make_job(workspace: Workspace, id: int, tasks: tuple[TaskSpec, ...], size: Size, ended: bool) -> None:
    paths = workspace.job(id, "net")
    paths.stages.mkdir(parents=True)
    inputs = (InputSpec("x", (1, 8), "float32"),)
    trials_at_submit = (0,) * len(tasks) if size.own else (size.trials + 1, *[SHORT + 1] * (len(tasks) - 1))
    spec = JobSpec(
        id=id, name="net", model="net.onnx", target={"kind": "simulated"}, target_key=KEY, inputs=inputs, tasks=tasks,
        trials=10 * size.trials, trials_per_round=16, strategy="random", sampler="greedy", seed=id, fresh=True,
        known_at_submit=trials_at_submit, submitted_at=time.time() - 1000 + id * 1e-3,
    )  # fmt: skip
    formats.write(paths.spec, spec)
    formats.write(paths.control, Control())
    progress = tuple(TaskProgress(16, 100.0) for _ in tasks)
    if ended:
        formats.write(paths.state, JobState("done", None, 16 * len(tasks), progress, time.time()))
    for task in range(len(tasks)):
        formats.write(paths.stage(task, 0), StageFile(task, 0, "search"))


def measure_daemon(workspace: Workspace, seconds: float) -> dict[str, Any]:
    """Serve a workspace for a while in a process of its own, and return what that process says of itself."""
    command = [sys.executable, __file__, "--serve", str(workspace.root), "--seconds", str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ})
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def serve(root: Path, seconds: float) -> None:
    """Be the daemon of a workspace, and print what it took."""
    begun = time.monotonic() - _age_s()
    from autotune.config import load_config
    from autotune.daemon.clock import DaemonClock
    from autotune.daemon.collector import Collector
    from autotune.daemon.job_queue import Change
    from autotune.daemon.loop import Daemon
    from autotune.errors import TimedOut
    from autotune.processes.messages import StageReport

    ticks: list[tuple[float, float, bool]] = []
    measured = False
    started = 0.0

    class Clock(DaemonClock):
        """Measures the time between two waits, which is that of a tick."""

        since: tuple[float, float] | None = None

        def wait(self, descriptors: Sequence[int], timeout_s: float) -> list[int]:
            nonlocal measured, started
            now = time.perf_counter()
            cpu = time.process_time()
            if self.since is None:
                started = time.monotonic() - begun
            else:
                ticks.append((now - self.since[0], cpu - self.since[1], measured))
            measured = False
            ready = super().wait(descriptors, timeout_s)
            self.since = (time.perf_counter(), time.process_time())
            return ready

    take = Collector.take

    def noted(self: Collector, report: StageReport) -> Change:
        nonlocal measured
        view = self.dispatcher.running._views.get(report.id)
        measured = measured or (view is not None and view.kind == "measure")
        return take(self, report)

    workspace = Workspace(root)
    clock = Clock()
    config = load_config(workspace.config)
    with patch.object(Collector, "take", noted), contextlib.suppress(TimedOut):
        Daemon(workspace, config, until=time.time() + seconds, clock=clock).run()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = {key: int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM")}
    print(json.dumps({"start_s": started, **memory, "ticks": ticks}))


def _age_s() -> float:
    """Return how long ago this process was started."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return float(Path("/proc/uptime").read_text().split()[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def report_daemon(name: str, figures: dict[str, Any]) -> None:
    print(f"{name}: start {figures['start_s']:.2f} s, memory {figures['VmRSS']:.0f} MB, peak {figures['VmHWM']:.0f} MB")
    later = figures["ticks"][5:]
    for what, chosen in (("all ticks", later), ("after a measurement", [tick for tick in later if tick[2]])):
        if chosen:
            wall, cpu = ([1e3 * tick[at] for tick in chosen] for at in (0, 1))
            print(
                f"    {len(chosen)} {what}: median {statistics.median(wall):.2f} ms, largest {max(wall):.1f} ms;"
                f" of CPU {statistics.median(cpu):.2f} ms, {max(cpu):.1f} ms"
            )


def part_daemon(folder: Path, size: Size, seconds: float) -> None:
    short = make_queue(folder / "small", Size(10, 3, SHORT))
    report_daemon(f"10 jobs, {SHORT} trials", measure_daemon(short, seconds))
    large = make_queue(folder / "large", size)
    report_daemon(
        f"{size.jobs} jobs, {size.unfinished} unfinished, {size.trials} trials", measure_daemon(large, seconds)
    )
    for log in large.tuning_logs(KEY):
        log.index.unlink()
    report_daemon("the same without an index", measure_daemon(large, 2.0))


def part_shared(folder: Path, seconds: float) -> None:
    report_daemon("20 jobs share 500 trials", measure_daemon(make_queue(folder / "shared", Size(20, 20, 500)), seconds))


def part_many(folder: Path, seconds: float) -> None:
    for name, own in (("that share four tasks", False), ("of four tasks each", True)):
        workspace = make_queue(folder / f"many-{own}", Size(3000, 3000, SHORT, own=own))
        report_daemon(f"3000 unfinished jobs {name}", measure_daemon(workspace, seconds))


def timed(action: Callable[[], object], times: int = 1) -> float:
    """Return the median time of an action in seconds."""
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


@dataclass
class Syncing:
    """Counts the seconds that `os.fsync` takes, which are the disk's."""

    seconds: float = 0.0
    _sync: Callable[[int], None] = os.fsync

    def __call__(self, descriptor: int) -> None:
        begun = time.perf_counter()
        self._sync(descriptor)
        self.seconds += time.perf_counter() - begun


def append_ms(log_of: Callable[[], TuningLog], first: int, times: int) -> float:
    """Return the median time of an append, its fsync apart, in milliseconds."""
    seconds = []
    syncing = Syncing()
    with patch("os.fsync", syncing):
        for number in range(first, first + times):
            log = log_of()
            syncing.seconds = 0.0
            begun = time.perf_counter()
            log.add([made_trial(number)])
            seconds.append(time.perf_counter() - begun - syncing.seconds)
    return 1e3 * statistics.median(seconds)


def part_append(folder: Path, trials: int) -> None:
    for count in (SHORT, trials):
        measure_append(folder / f"append-{count}.jsonl", count)


def measure_append(path: Path, count: int) -> None:
    write_log(path, count)
    first = append_ms(lambda: TuningLog(path), 10**6, 5)
    log = TuningLog(path)
    log.entries()
    again = append_ms(lambda: log, 2 * 10**6, 200)
    opened = timed(lambda: TuningLog(path).entries(), 3)
    path.with_suffix(".index").unlink()
    scanned = timed(lambda: TuningLog(path).entries(), 1)
    print(
        f"append to {count} trials: {again:.3f} ms without fsync; the first of a process {first:.1f} ms;"
        f" to open the log {1e3 * opened:.1f} ms, without an index {1e3 * scanned:.0f} ms"
    )


def part_commands(folder: Path, size: Size) -> None:
    for trials in (SHORT, size.trials):
        workspace = make_queue(folder / f"commands-{trials}", replace(size, trials=trials))

        os.sync()

        def command(*words: str, times: int = 3, root: Path = workspace.root) -> float:
            call = [sys.executable, "-m", "autotune", "--workspace", str(root), *words]
            return timed(lambda: subprocess.run(call, check=True, stdout=subprocess.DEVNULL), times)

        last = str(size.jobs)
        looks = f"status {command('status'):.2f} s, status of a job {command('status', last):.2f} s"
        cleaned = command("clean", "--finished", "--older-than", "1h", times=1)
        print(f"a log of {trials}: {looks}, clean {cleaned:.2f} s")


def part_search(folder: Path, trials: int) -> None:
    make = Path(__file__).parents[1] / "models/make_models.py"
    subprocess.run([sys.executable, make, "mlp", "--output", folder], check=True, stdout=subprocess.DEVNULL)
    root = folder / "search"
    root.mkdir()
    (root / "autotune.toml").write_text(f'[machine]\nlock_dir = "{folder}/locks"\n')
    words = [sys.executable, "-m", "autotune", "--workspace", str(root), "submit", str(folder / "mlp.onnx"), "-q"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, __file__, "--search", str(root), "--trials", str(trials)], check=True)


def search(root: Path, trials: int) -> None:
    """Search once with a short and once with a long log, in this process, which has TVM loaded by then."""
    from autotune.config import load_config
    from autotune.processes.messages import RunStage
    from autotune.stages import cost_model_file
    from autotune.stages import search as stage_search
    from autotune.stages.stage import Stage

    workspace = Workspace(root)
    paths = workspace.job_list()[0]
    spec = formats.read(JobSpec, paths.spec)
    task = spec.tunable[0]
    config = load_config(workspace.config)

    def stage(count: int) -> Stage:
        formats.write(paths.stage(task, 0), StageFile(task, 0, "search"))
        request = RunStage(1, paths.folder.name, task, 0, "search", (0,), 60.0, count=count)
        return Stage.load(workspace, config, request)

    stage_search.run(stage(128))
    candidates = formats.read(StageFile, paths.stage(task, 0)).candidates
    log = workspace.tuning_log(spec.target_key, spec.tasks[task].hash).records
    log.parent.mkdir(parents=True, exist_ok=True)
    for count in (SHORT, trials):
        for path in log.parent.glob(f"{log.stem}*"):
            path.unlink()
        cost_model_file.forget_model(paths)
        write_log(log, count, candidates)
        learning = timed(lambda: cost_model_file.update_model(stage(16)))
        searching = timed(lambda: stage_search.run(stage(16)), 3)
        peak = max(map(int, Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[:1])) / 1024
        print(f"{count} trials: a search {searching:.2f} s, training anew {learning:.2f} s; peak so far {peak:.0f} MB")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--unfinished", type=int, default=300)
    options.add_argument("--trials", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=15.0, help="how long a daemon serves")
    options.add_argument("--parts", default="daemon,shared,many,append,commands,search")
    options.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve:
        return serve(given.serve, given.seconds)
    if given.search:
        return search(given.search, given.trials)
    size = Size(given.jobs, given.unfinished, given.trials)
    chosen = given.parts.split(",")
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="measure-scale-") as made:
            folder = Path(made)
            if name == "daemon":
                part_daemon(folder, size, given.seconds)
            elif name == "shared":
                part_shared(folder, given.seconds)
            elif name == "many":
                part_many(folder, given.seconds)
            elif name == "append":
                part_append(folder, size.trials)
            elif name == "commands":
                part_commands(folder, size)
            elif name == "search":
                part_search(folder, size.trials)
            else:
                options.error(f"no part {name!r}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
