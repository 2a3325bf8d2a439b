#!/usr/bin/env python
"""Tune models with autotune and with TVM's own `tune_relax`, and print both side by side.

    python scripts/bench/bench_vs_tune_relax.py resnet18.onnx mobilenet_v2.onnx --trials 320 --equal-time

For each model each side tunes alone on the machine, in a process and a folder of its own, on equal trials; with
`--equal-time` autotune then goes on until it has taken as long as `tune_relax`. Afterwards the models that autotune
would have exported at several moments, the final ones of both, the untuned one and ONNX Runtime are timed in turns, in
one process, on the same number of threads: every latency is that of a whole model, and all were measured together.
Of `tune_relax` only its end is known so; the curve of `--plot FILE.png` is what it logs, the sum of its tasks' times.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

SELF = Path(__file__).resolve()
TOLERANCE = 1e-3
CHECKPOINTS = 10
_SLOW_S = 0.2  # a version whose run takes longer is slow
_TURN_S = 0.05
BUILD_LIMIT_S = 180
GOALS = "goals: 6 times the trials per second; a twentieth of the time to its latency; half its latency at equal time"


def main() -> None:
    options = parse()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    root = Path(options.folder or tempfile.mkdtemp(prefix="bench-"))
    curves = {}
    for model in options.models:
        folder = root / model.stem
        folder.mkdir(parents=True, exist_ok=True)
        sides = bench(options, model, folder)
        print_table(options, model, sides)
        curves[model.stem] = sides
        (folder / "result.json").write_text(json.dumps(sides, indent=1))
    if options.plot:
        draw(curves, options.plot)
    print(f"{GOALS}\nkept in {root}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=320)
    parser.add_argument("--trials-per-round", type=int, default=16, help="of tune_relax; autotune uses its defaults")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=30, help="turns of the latency comparison")
    parser.add_argument("--equal-time", action="store_true", help="go on with autotune for as long as tune_relax took")
    parser.add_argument("--folder", help="where to work and keep the results (default: a temporary folder)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw latency over time")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def bench(options: argparse.Namespace, model: Path, folder: Path) -> dict[str, Any]:
    theirs = run_side("tune_relax", options, model, folder)
    ours = run_side("autotune", options, model, folder)
    sides = {"tune_relax": theirs, "autotune": ours}
    if options.equal_time:
        left = theirs["seconds"] - ours["seconds"]
        sides["equal_time"] = run_side("equal_time", options, model, folder, max(0.0, left))
    sides["latency"] = run_side("latency", options, model, folder)
    return sides


def run_side(side: str, options: argparse.Namespace, model: Path, folder: Path, seconds: float = 0.0) -> dict[str, Any]:
    """Run one side in a process of its own and return what it prints; one that was run before is not run again."""
    kept = folder / f"{side}.json"
    if kept.exists():
        answer: dict[str, Any] = json.loads(kept.read_text())
        return answer
    print(f"{time.strftime('%H:%M:%S')}  {model.stem}: {side} ...", file=sys.stderr, flush=True)
    command = [sys.executable, str(SELF), str(model), "--side", side, "--folder", str(folder)]
    command += ["--trials", str(options.trials), "--trials-per-round", str(options.trials_per_round)]
    command += ["--threads", str(options.threads), "--turns", str(options.turns), "--seconds", str(seconds)]
    with (folder / f"{side}.log").open("wb") as log:
        environment = {**os.environ, "TVM_NUM_THREADS": str(options.threads)}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{side} failed; see {folder / f'{side}.log'}")
    kept.write_bytes(done.stdout.splitlines()[-1])
    answer = json.loads(kept.read_text())
    return answer


def tune_with_autotune(options: argparse.Namespace) -> dict[str, Any]:
    """submit, daemon, export: as a user does it, and timed as a user waits for it, without the export."""
    started = time.monotonic()
    at = time.time()
    autotune(options, "submit", str(options.models[0]), "--trials", str(options.trials))
    autotune(options, "daemon", "run", "--drain")
    seconds = time.monotonic() - started
    autotune(options, "export", "last", "--output", str(Path(options.folder) / "autotune"))
    return {"seconds": seconds, "trials": trials_done(options), "started_at": at, "stages": stage_seconds(options)}


def go_on_with_autotune(options: argparse.Namespace) -> dict[str, Any]:
    """The same model again, with a budget that will not run out, for some more seconds."""
    started = time.monotonic()
    at = time.time()
    before = trials_done(options)
    autotune(options, "submit", str(options.models[0]), "--trials", str(options.trials * 100))
    daemon = subprocess.Popen([*program(options), "daemon", "run", "--drain"], stdout=sys.stderr)
    try:
        daemon.wait(max(0.0, options.seconds - (time.monotonic() - started)))
    except subprocess.TimeoutExpired:
        daemon.terminate()
        daemon.wait()
    seconds = time.monotonic() - started
    autotune(options, "export", "last", "--output", str(Path(options.folder) / "equal_time"))
    return {"seconds": seconds, "trials": trials_done(options) - before, "started_at": at}


def program(options: argparse.Namespace) -> list[str]:
    workspace = Path(options.folder) / "workspace"
    workspace.mkdir(exist_ok=True)
    return [sys.executable, "-m", "autotune", "--workspace", str(workspace)]


def autotune(options: argparse.Namespace, *words: str) -> None:
    subprocess.run([*program(options), *words], check=True, stdout=sys.stderr)


def trials_done(options: argparse.Namespace) -> int:
    answer = subprocess.check_output([*program(options), "status", "last", "--json"])
    return int(json.loads(answer)["jobs"][-1]["trials_done"])


def stage_seconds(options: argparse.Namespace) -> dict[str, float]:
    """Seconds that the stages of each kind took; those that only compute ran side by side."""
    from autotune.commands import logs
    from autotune.storage.journal import StageDone
    from autotune.storage.paths import Workspace

    workspace = Workspace(Path(options.folder) / "workspace")
    seconds: dict[str, float] = {}
    for event in logs.events(workspace.job_list()[-1], follow=False):
        if isinstance(event, StageDone):
            seconds[event.kind] = seconds.get(event.kind, 0.0) + event.seconds
    return seconds


def tune_with_tune_relax(options: argparse.Namespace) -> dict[str, Any]:
    """TVM's own loop, on the module that its compile_relax expects."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    started = time.monotonic()
    at = time.time()
    target = tvm.target.Target(target_of(options))
    work = Path(options.folder) / "tune_relax"
    with target, tvm.transform.PassContext(opt_level=3):
        simplified = tvm.transform.Sequential(
            [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
        )(imported(options))
        lowered = relax.get_pipeline("zero")(simplified)
        database = ms.relax_integration.tune_relax(
            lowered,
            {},
            target,
            str(work),
            max_trials_global=options.trials,
            num_trials_per_iter=options.trials_per_round,
            # Each of its builders imports all of TVM's intrinsics first, which takes longer than its own limit of 30 s
            # on a slow machine: it would build nothing at all.
            builder=ms.builder.LocalBuilder(timeout_sec=BUILD_LIMIT_S),
            seed=1,
        )
        executable = ms.relax_integration.compile_relax(database, simplified, target, {})
    seconds = time.monotonic() - started
    executable.export_library(str(Path(options.folder) / "tune_relax.so"))
    sums = [(when - at, milliseconds) for when, milliseconds in logged_sums(work)]
    return {"seconds": seconds, "trials": len(database), "sum_of_tasks": sums}


def logged_sums(work: Path) -> Iterator[tuple[float, float]]:
    """What TVM's task scheduler logged: the moment, and milliseconds for all tasks once every task has a time."""
    when = 0.0
    unknown = False
    for line in next(work.glob("logs/*task_scheduler.log")).read_text().splitlines():
        unknown = unknown or "N/A" in line  # in a row of the table that comes before each sum
        if match := re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line):
            when = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").timestamp()
        if match := re.match(r"Total latency \(us\): ([\d.e+]+)", line):
            if not unknown:
                yield when, float(match[1]) / 1000
            unknown = False


def target_of(options: argparse.Namespace) -> dict[str, Any]:
    from autotune.tvm_backend.target import resolve_target

    return resolve_target("llvm", options.threads).description


def imported(options: argparse.Namespace) -> Any:
    from autotune.tvm_backend.models.onnx.read import read_model

    return read_model(options.models[0], {}).module


def compare_latency(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of all, in turns; `at` has those of what autotune would have exported after so many seconds."""
    import tvm

    from autotune.tvm_backend.export import runners
    from autotune.tvm_backend.export.compilation import compile_untuned
    from autotune.tvm_backend.export.drawn_inputs import draw
    from autotune.tvm_backend.export.verification import accuracy
    from autotune.tvm_backend.models.onnx.read import read_model

    folder = Path(options.folder)
    device = tvm.cpu(0)
    model = read_model(options.models[0], {})
    arrays = draw(model.inputs, seed=1)
    session = runners.onnx_session(options.models[0], options.threads)
    libraries = {"tune_relax": folder / "tune_relax.so", "autotune": folder / "autotune/model.so"}
    if (folder / "equal_time/model.so").exists():
        libraries["equal_time"] = folder / "equal_time/model.so"
    tuned = {name: tvm.runtime.load_module(str(path)) for name, path in libraries.items()}
    tuned |= {f"{seconds:.1f}": executable for seconds, executable in checkpoints(options)}
    versions = {name: runners.vm_runner(executable, device, arrays) for name, executable in tuned.items()}
    untuned = compile_untuned(model.module, tvm.target.Target(target_of(options)))
    versions["untuned"] = runners.vm_runner(untuned, device, arrays)
    versions["onnxruntime"] = runners.onnx_runner(session, model.inputs, arrays)
    reference = versions["onnxruntime"]()
    for name in tuned:
        accuracy.check(versions[name](), reference, TOLERANCE)
    return alternate(versions, options.turns)


def alternate(runners: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Time several versions of a model in turns, so that a change of the machine affects all of them.

    In each turn a version runs for at least 50 ms. A version whose run takes more than 200 ms takes part in every fifth
    turn only.

    Args:
        runners: For each version, a function that runs it once.
        turns: How many turns there are.

    Returns:
        The median time of a run of each version, in milliseconds.
    """
    first = {name: _seconds(run, 1) for name, run in runners.items()}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(turns):
        for name, run in runners.items():
            if first[name] < _SLOW_S or turn % 5 == 0:
                times[name].append(_seconds(run, max(1, round(_TURN_S / first[name]))))
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def _seconds(run: Callable[[], object], count: int) -> float:
    """Return the seconds that a run takes. A first run, which does not count, wakes the thread pool."""
    run()
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count


def checkpoints(options: argparse.Namespace) -> Iterator[tuple[float, Any]]:
    """What autotune would have exported after so many seconds: the moments stand ever further apart."""
    import tvm

    from autotune.storage import formats
    from autotune.storage.formats import JobSpec
    from autotune.storage.paths import Workspace
    from autotune.storage.tuning_log import TuningLog
    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.models.onnx.read import read_model
    from autotune.tvm_backend.search.tasks import extract_tasks

    folder = Path(options.folder)
    workspace = Workspace(folder / "workspace")
    spec = formats.read(JobSpec, workspace.job_list()[0].spec)
    target = tvm.target.Target(spec.target)
    prepared = prepare(read_model(options.models[0], {}).module, target, winograd=spec.winograd)
    programs = [task.program for task in extract_tasks(prepared, target)]
    logs = {task.hash: TuningLog(workspace.tuning_log(spec.target_key, task.hash).records) for task in spec.tasks}
    trials = {hash: [trial for trial in log.trials() if trial.median_us] for hash, log in logs.items()}
    side = json.loads((folder / "autotune.json").read_text())
    for moment in (side["seconds"] / 1.3**step for step in reversed(range(CHECKPOINTS))):
        measured = {hash: [t for t in log if t.at <= side["started_at"] + moment] for hash, log in trials.items()}
        best = {hash: min(log, key=lambda trial: trial.median_us) for hash, log in measured.items() if log}
        yield moment, compile_tuned(prepared, programs, best, target)


def print_table(options: argparse.Namespace, model: Path, sides: dict[str, Any]) -> None:
    latency = sides["latency"]
    print(f"{model.name}, {options.trials} trials, {options.threads} threads\n")
    print(f"{'':<22}{'seconds':>9}{'trials':>8}{'trials/s':>10}{'latency ms':>12}{'vs ONNX Runtime':>17}")
    rows = {"untuned": None, "tune_relax": sides["tune_relax"], "autotune": sides["autotune"]}
    if "equal_time" in sides:
        more = sides["equal_time"]
        ours = sides["autotune"]
        rows["equal_time"] = {key: more[key] + ours[key] for key in ("seconds", "trials")}
    for name, side in {**rows, "onnxruntime": None}.items():
        spent = f"{'':>27}"
        if side:
            spent = f"{side['seconds']:9.1f}{side['trials']:8}{side['trials'] / side['seconds']:10.2f}"
        title = "autotune, equal time" if name == "equal_time" else name
        print(f"{title:<22}{spent}{latency[name]:12.3f}{latency[name] / latency['onnxruntime']:17.2f}")
    print_verdict(sides)


def print_verdict(sides: dict[str, Any]) -> None:
    ours = sides["autotune"]
    theirs = sides["tune_relax"]
    latency = sides["latency"]
    goal = latency["tune_relax"]
    rate = (ours["trials"] / ours["seconds"]) / (theirs["trials"] / theirs["seconds"])
    print(f"\nautotune: {rate:.2f} times the trials per second, at equal trials {goal / latency['autotune']:.2f} times"
          " as fast a model as tune_relax")  # fmt: skip
    if "equal_time" in sides:
        print(f"at equal time {goal / latency['equal_time']:.2f} times as fast a model")
    moments = curve(latency)
    print("autotune after: " + ", ".join(f"{seconds:.0f} s {ms:.1f} ms" for seconds, ms in moments))
    reached = [seconds for seconds, ms in moments if ms <= goal]
    if reached:
        print(
            f"as fast as tune_relax's end after {reached[0]:.0f} s: {theirs['seconds'] / reached[0]:.1f} times sooner"
        )
    else:
        print("never as fast as tune_relax's end")
    spent = ", ".join(f"{kind} {seconds:.0f} s" for kind, seconds in ours["stages"].items())
    print(f"time in stages, two of which may run at once: {spent}\n")


def curve(latency: dict[str, float]) -> list[tuple[float, float]]:
    """Seconds, and milliseconds of the model after them."""
    return sorted((float(name), ms) for name, ms in latency.items() if re.fullmatch(r"[\d.]+", name))


def draw(curves: dict[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    _, axes = pyplot.subplots(1, len(curves), figsize=(6 * len(curves), 4), squeeze=False)
    for axis, (name, sides) in zip(axes[0], curves.items(), strict=True):
        latency = sides["latency"]
        axis.plot(*zip(*curve(latency), strict=True), "o-", label="autotune, model as exported then")
        axis.plot(*zip(*sides["tune_relax"]["sum_of_tasks"], strict=True), label="tune_relax, sum of its tasks")
        axis.plot(
            sides["tune_relax"]["seconds"], latency["tune_relax"], "s", color="C1", label="tune_relax, final model"
        )
        if "equal_time" in sides:
            axis.plot(sides["tune_relax"]["seconds"], latency["equal_time"], "o", color="C0")
        axis.axhline(latency["onnxruntime"], color="grey", linestyle=":", label="ONNX Runtime")
        axis.set(title=name, xlabel="seconds", ylabel="latency, ms", xscale="log", yscale="log")
        axis.legend(fontsize="small")
    pyplot.savefig(path, dpi=120, bbox_inches="tight")


SIDES = {
    "autotune": tune_with_autotune,
    "equal_time": go_on_with_autotune,
    "tune_relax": tune_with_tune_relax,
    "latency": compare_latency,
}

if __name__ == "__main__":
    main()
