#!/usr/bin/env python
"""Tune one model with autotune and with TVM's own `tune_relax`, on equal trials, and print both side by side.

    python scripts/bench_vs_tune_relax.py resnet18.onnx --trials 320

Each side tunes alone on the machine, in a process and a folder of its own. In the end the two tuned models, the
untuned one and ONNX Runtime are timed in turns, in one process, on the same number of threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SELF = Path(__file__).resolve()
TOLERANCE = 1e-3


def main() -> None:
    options = parse()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    folder = Path(options.folder or tempfile.mkdtemp(prefix="bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    order = ["autotune", "tune_relax"] if not options.tune_relax_first else ["tune_relax", "autotune"]
    results = {side: run_side(side, options, folder) for side in order}
    latency = run_side("latency", options, folder)
    print_table(options, results, latency)
    (folder / "result.json").write_text(json.dumps({"tuning": results, "latency_ms": latency}, indent=1))
    print(f"\nkept in {folder}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--trials", type=int, default=320)
    parser.add_argument("--trials-per-round", type=int, default=16)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=40, help="turns of the latency comparison")
    parser.add_argument("--folder", help="where to work and keep the results (default: a temporary folder)")
    parser.add_argument("--tune-relax-first", action="store_true")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    return parser.parse_args()


def run_side(side: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one side in a process of its own and return what it prints."""
    print(f"{time.strftime('%H:%M:%S')}  {side} ...", file=sys.stderr, flush=True)
    command = [sys.executable, str(SELF), str(options.model), "--side", side, "--folder", str(folder)]
    command += ["--trials", str(options.trials), "--trials-per-round", str(options.trials_per_round)]
    command += ["--threads", str(options.threads), "--turns", str(options.turns)]
    with (folder / f"{side}.log").open("wb") as log:
        environment = {**os.environ, "TVM_NUM_THREADS": str(options.threads)}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{side} failed; see {folder / f'{side}.log'}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def tune_with_autotune(options: argparse.Namespace) -> dict[str, Any]:
    """submit, daemon, export: as a user does it, and timed as a user waits for it, without the export."""
    workspace = Path(options.folder) / "workspace"
    workspace.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "autotune", "--workspace", str(workspace)]
    budget = ["--trials", str(options.trials), "--trials-per-round", str(options.trials_per_round)]
    started = time.monotonic()
    subprocess.run([*program, "submit", str(options.model), *budget], check=True, stdout=sys.stderr)
    subprocess.run([*program, "daemon", "run", "--drain"], check=True, stdout=sys.stderr)
    seconds = time.monotonic() - started
    status = json.loads(subprocess.check_output([*program, "status", "--json"]))["jobs"][-1]
    output = Path(options.folder) / "autotune"
    subprocess.run([*program, "export", "last", "--output", str(output)], check=True, stdout=sys.stderr)
    return {"seconds": seconds, "trials": status["trials_done"]}


def tune_with_tune_relax(options: argparse.Namespace) -> dict[str, Any]:
    """TVM's own loop, on the module that its compile_relax expects."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    started = time.monotonic()
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
            seed=1,
        )
        executable = ms.relax_integration.compile_relax(database, simplified, target, {})
    seconds = time.monotonic() - started
    executable.export_library(str(Path(options.folder) / "tune_relax.so"))
    return {"seconds": seconds, "trials": len(database)}


def target_of(options: argparse.Namespace) -> dict[str, Any]:
    from autotune.tvm_backend.target import resolve_target

    return resolve_target("llvm", options.threads).description


def imported(options: argparse.Namespace) -> Any:
    from autotune.tvm_backend.model import read_model

    return read_model(options.model, {}).module


def compare_latency(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of all four, in turns."""
    import tvm

    from autotune.tvm_backend import compare
    from autotune.tvm_backend.compile import compile_untuned
    from autotune.tvm_backend.model import read_model

    folder, device = Path(options.folder), tvm.cpu(0)
    model = read_model(options.model, {})
    arrays = compare.random_inputs(model.inputs, seed=1)
    session = compare.onnx_session(options.model, options.threads)
    untuned = compile_untuned(model.module, tvm.target.Target(target_of(options)))
    runners = {
        "untuned": compare.vm_runner(untuned, device, arrays),
        "tune_relax": compare.vm_runner(tvm.runtime.load_module(str(folder / "tune_relax.so")), device, arrays),
        "autotune": compare.vm_runner(tvm.runtime.load_module(str(folder / "autotune/model.so")), device, arrays),
        "onnxruntime": compare.onnx_runner(session, model.inputs, arrays),
    }
    reference = runners["onnxruntime"]()
    for name in ("tune_relax", "autotune"):
        compare.check(runners[name](), reference, TOLERANCE)
    return compare.alternate(runners, options.turns)


def print_table(options: argparse.Namespace, results: dict[str, dict[str, Any]], latency: dict[str, float]) -> None:
    print(f"{options.model.name}, {options.trials} trials, {options.threads} threads\n")
    print(f"{'':<14}{'seconds':>9}{'trials':>8}{'trials/s':>10}{'latency ms':>12}{'vs ONNX Runtime':>17}")
    for name in ("untuned", "tune_relax", "autotune", "onnxruntime"):
        found = results.get(name)
        spent = f"{'':>27}"
        if found:
            spent = f"{found['seconds']:9.1f}{found['trials']:8}{found['trials'] / found['seconds']:10.2f}"
        print(f"{name:<14}{spent}{latency[name]:12.3f}{latency[name] / latency['onnxruntime']:17.2f}")
    ours, theirs = results["autotune"], results["tune_relax"]
    rate = (ours["trials"] / ours["seconds"]) / (theirs["trials"] / theirs["seconds"])
    print(f"\nautotune: {rate:.2f} times the trials per second, {latency['tune_relax'] / latency['autotune']:.2f}"
          " times as fast a model as tune_relax")  # fmt: skip


SIDES = {"autotune": tune_with_autotune, "tune_relax": tune_with_tune_relax, "latency": compare_latency}

if __name__ == "__main__":
    main()
