"""From a model file to a verified library, and what is on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.storage.export_lock import LOCK
from autotune.storage.job_files import read_spec
from autotune.storage.paths import Workspace
from autotune.storage.trial_index import nearly_fastest
from autotune.storage.tuning_log import TuningLog

from ..waiting import until
from .conftest import MadeOnce, User, make_user


def test_a_drained_queue_has_spent_the_budget_on_all_tasks_that_can_be_tuned(tuned):
    (job,) = tuned.status()
    assert (job["state"], job["reason"], job["trials_done"]) == ("done", "budget used", 10)
    assert sum(task["trials"] for task in job["tasks"]) == 10
    assert sorted(tuned.trials().values()) == [1] * 10, "no candidate was measured twice"
    timed = {task["name"] for task in job["tasks"] if task["best_us"]}
    assert {name.split("_")[0] for name in timed} == {"conv2d", "max", "matmul", "mean"}
    untuned = [task["best_us"] for task in job["tasks"] if task["name"].startswith("reshape")]
    assert untuned and set(untuned) == {None}
    whole = job["whole_model"]
    assert whole["model_ms"] > 0 and whole["reference"] == "onnxruntime" and whole["reference_ms"] > 0
    assert "the whole model takes" in tuned.ok("status", "last")
    assert not list(tuned.root.glob("jobs/*/artifacts/*")), "no build is left behind"


def test_the_journal_tells_every_stage(tuned):
    told = tuned.ok("logs", "last")
    assert all(f"  {kind}" in told for kind in ("search", "build", "measure", "train"))
    assert told.splitlines()[-1].endswith("done: reason budget used")


class TestExport:
    def test_reports_what_was_verified_and_compared(self, exported):
        report = json.loads((exported.folder / "report.json").read_text())
        assert 0 <= report["largest_relative_error"] < 1e-4
        assert set(report["latency"]) == {"untuned_ms", "tuned_ms", "onnxruntime_ms"}
        assert all(value > 0 for value in report["latency"].values())
        assert set(report["latency_spread"]) == set(report["latency"])
        for name, (low, high) in report["latency_spread"].items():
            assert 0 < low <= report["latency"][name] <= high
        for taken in (report["load_ms"], report["memory_mb"]):
            assert set(taken) == set(report["latency"]) and min(taken.values()) > 0
        assert report["size_mb"]["model.so"] == round((exported.folder / "model.so").stat().st_size / 1e6, 3)
        median, low, high = report["share_of_onnxruntime"]
        assert 0 < low <= median <= high
        assert report["threads"] == len(os.sched_getaffinity(0))

    def test_times_again_the_candidates_that_may_be_the_fastest(self, exported, tuned):
        again = {task["name"] for task in exported.report["tasks"] if task["again_us"]}
        total_us = sum((task["best_us"] or 0.0) * task["weight"] for task in exported.report["tasks"])
        large = {task["name"] for task in exported.report["tasks"] if (task["best_us"] or 0.0) >= 0.011 * total_us}
        (paths,) = Workspace(tuned.root).job_list()
        spec = read_spec(paths)
        logs = {task.name: Workspace(tuned.root).tuning_log(spec.target_key, task.hash).records for task in spec.tasks}
        near = {name for name, log in logs.items() if len(nearly_fastest(TuningLog(log).entries(), 8)) > 1}
        assert near & large <= again <= near

    def test_run_py_needs_the_tvm_runtime_alone(self, exported, tmp_path):
        """It runs where autotune, onnx and the workspace are out of reach."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        block = "import sys; sys.modules.update(dict.fromkeys(['autotune', 'onnx', 'onnxruntime', 'xgboost']))"
        code = f"{block}; import runpy; runpy.run_path({str(exported.folder / 'run.py')!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("(1, 10) float32")

    def test_run_py_is_short(self, exported):
        code = [line for line in (exported.folder / "run.py").read_text().splitlines() if line.strip()]
        assert len(code) <= 20

    def test_tvm_alone_computes_what_onnx_runtime_computes_and_prints_nothing(self, exported, models):
        check = f"""
import numpy, onnxruntime, tvm
from tvm import relax
x = numpy.random.default_rng(7).standard_normal((1, 3, 16, 16)).astype("float32")
model = relax.VirtualMachine(tvm.runtime.load_module({str(exported.folder / "model.so")!r}), tvm.cpu())
ours = model["main"](tvm.runtime.tensor(x)).numpy()
session = onnxruntime.InferenceSession({str(models / "tiny_cnn.onnx")!r})
numpy.testing.assert_allclose(ours, session.run(None, {{"input": x}})[0], rtol=1e-4, atol=1e-5)
"""
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_refuses_a_model_that_computes_something_else(self, tuned, tmp_path):
        """With no tolerance at all, rounding alone is a difference; nothing is handed over then."""
        strict = User(shutil.copytree(tuned.root, tmp_path / "workspace"))
        settings = strict.root / "autotune.toml"
        settings.write_text(settings.read_text().replace(str(tuned.root), str(strict.root)))  # it waits for nobody
        strict.settle("tolerance = 1e-12\n")  # the last section of the file is [export]
        done = strict.run("export", "last", "--output", tmp_path / "out")
        assert done.returncode == 1
        *steps, error = done.stderr.splitlines()
        assert "largest relative error" in error
        assert steps and all("step " in line for line in steps)
        assert not list((tmp_path / "out").iterdir())


def test_an_unchanged_job_is_exported_again_byte_for_byte_and_nothing_is_compiled(tuned, tmp_path):
    user = User(shutil.copytree(tuned.root, tmp_path / "workspace"))
    assert list((tuned.root / "logs" / "objects").iterdir()), "the queue has kept what it compiled"
    assert "ready to export" in user.ok("status", "last")

    def export(name, *options):
        done = user.run("export", "last", "--quick", "--output", tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        files = {path.relative_to(tmp_path / name): path for path in (tmp_path / name).rglob("*") if path.is_file()}
        return done.stderr, {name: path.read_bytes() for name, path in files.items()}

    steps, first = export("one", "--again")  # another test may have exported it
    assert "step 1 of 4: loading TVM" in steps and "compiling" not in steps
    said, second = export("two")
    assert [line.split("s  ")[1] for line in said.splitlines()] == [
        "nothing has changed since the last export of the job: these are its files; --again makes new ones"
    ]
    assert second == first and Path("model.so") in first
    steps, third = export("two", "--again")
    assert "loading TVM" in steps and third[Path("model.so")] == first[Path("model.so")]
    (tmp_path / "two" / "model.so").write_bytes(b"damaged")
    user.ok("clean", "--objects")
    assert "ready to export" not in user.ok("status", "last")
    steps, fourth = export("two")
    assert "compiling" in steps and fourth[Path("model.so")] == first[Path("model.so")]


@pytest.mark.slow
def test_a_library_is_made_for_the_number_of_threads_on_which_it_is_fastest(tuned, tmp_path):
    report = json.loads(
        User(tuned.root).ok("export", "last", "--threads", "auto", "--output", tmp_path / "out", "--json")
    )
    times = {int(count): ms for count, ms in report["ms_by_threads"].items()}
    assert set(times) == {1, report["reference_threads"]} | {count for count in (2, 4) if count in times}
    assert times[report["threads"]] == min(times.values()) > 0
    assert f'"TVM_NUM_THREADS", "{report["threads"]}"' in (tmp_path / "out" / "run.py").read_text()
    assert json.loads((tmp_path / "out" / LOCK).read_text())["threads"] == report["threads"]


def test_a_lock_file_makes_the_same_library_in_a_workspace_that_has_no_trials(exported, models, tmp_path):
    first = exported.folder
    again = tmp_path / "again"
    again.mkdir()
    shutil.copyfile(first / LOCK, again / LOCK)
    other = make_user(tmp_path / "other")
    other.ok("submit", models / "tiny_cnn.onnx")
    report = json.loads(other.ok("export", "1", "--frozen", "--source", "--output", again, "--json"))
    assert (again / "model.so").read_bytes() == (first / "model.so").read_bytes()
    assert (again / LOCK).read_bytes() == (first / LOCK).read_bytes()
    assert any(task["best_us"] for task in report["tasks"]) and report["latency"] == {}


def test_a_frozen_export_refuses_a_lock_file_that_runs_code(tuned, exported, tmp_path):
    lock = json.loads((exported.folder / LOCK).read_text())
    task = next(task for task in lock["tasks"] if task["trial"])
    task["trial"]["trace"][0].append(["Annotate", ["b0", '"import c"'], ["pragma_import_c"], []])
    (tmp_path / LOCK).write_text(json.dumps(lock))
    done = User(tuned.root).run("export", "last", "--frozen", "--output", tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"{tmp_path / LOCK} is damaged" in done.stderr and "is refused" in done.stderr


def test_an_export_works_before_anything_is_measured(submitted, tmp_path):
    report = json.loads(User(submitted).ok("export", "1", "--output", tmp_path / "out", "--quick", "--json"))
    assert report["largest_relative_error"] < 1e-4
    assert report["tasks"] and all(task["best_us"] is None for task in report["tasks"])


@pytest.fixture(scope="module")
def tried(models: Path, made_once: MadeOnce) -> Path:
    """A workspace in which each task of mlp.onnx has a trial, to be copied."""

    def make(folder: Path) -> None:
        user = make_user(folder)
        user.ok("submit", models / "mlp.onnx", "--trials", 4, "--trials-per-round", 4)
        user.ok("daemon", "run", "--drain")

    return made_once("tried", make)


@pytest.fixture
def veteran(tried: Path, tmp_path: Path) -> User:
    """Someone who has tuned mlp.onnx before."""
    return User(shutil.copytree(tried, tmp_path / "workspace"))


def test_more_jobs_start_from_the_trials_of_the_first_and_their_daemon_never_loads_tvm(veteran, models):
    budget = ("--trials", 4, "--trials-per-round", 4)
    veteran.ok("submit", models / "mlp.onnx", *budget)
    veteran.ok("submit", models / "mlp.onnx", *budget, "--fresh", "--name", "anew")
    daemon = veteran.start("daemon", "run")
    try:
        veteran.ok("wait", "all", "--timeout", 120)
        loaded = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "python" in loaded and "libtvm" not in loaded and "xgboost" not in loaded
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)
    first, second, anew = veteran.status()
    assert (second["trials_done"], second["tasks"]) == (4, first["tasks"])
    assert (anew["state"], anew["trials_done"]) == ("done", 4)
    assert sorted(veteran.trials().values()) == [1] * 8


@pytest.mark.parametrize("run", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_whose_target_is_met_by_the_trials_there_are_only_confirms_it(veteran, models, run):
    veteran.ok("submit", models / "mlp.onnx", "--stop-at", "1s", "--name", "fast")
    first = [json.loads(path.read_text())["kind"] for path in veteran.root.glob("jobs/*-fast/stages/*.json")]
    assert first.count("compile") == 1
    if not run:  # how it goes on is tried with simulated devices
        return
    veteran.ok("daemon", "run", "--drain")
    fast = veteran.status()[-1]
    assert fast["state"] == "done" and fast["reason"].startswith("target latency reached: the whole model takes 0.")
    stages = [line.split()[2] for line in veteran.ok("logs", "fast").splitlines() if " task " in line]
    assert stages == ["compile", "confirm"]


@pytest.mark.slow
def test_equal_seeds_propose_equal_candidates(user, other_user, models):
    for someone in (user, other_user):
        someone.ok("submit", models / "mlp.onnx", "--trials", 2, "--trials-per-round", 2, "--seed", 5)
        someone.ok("daemon", "run", "--drain")
    assert len(user.trials()) == 2
    assert set(user.trials()) == set(other_user.trials())


@pytest.mark.slow
def test_a_job_for_cuda_is_built_and_waits_for_a_device(user, models):
    """On a machine without a GPU; nvcc is enough to get as far as the measurement."""
    from autotune.machine.gpus import cuda_devices

    if cuda_devices():
        pytest.skip("this machine has a GPU: nothing waits")
    user.ok("submit", models / "mlp.onnx", "--target", "cuda", "--trials", 1, "--trials-per-round", 1)
    daemon = user.start("daemon", "run")
    try:
        until(lambda: user.reason().startswith("needs"))
        (job,) = user.status()
        assert job["state"] == "waiting"
        assert job["reason"] == "needs a CUDA device, and this machine has none"
        stages = [json.loads(path.read_text()) for path in user.root.glob("jobs/*/stages/*.json")]
        (built,) = [stage for stage in stages if stage["kind"] == "measure"]
        assert [candidate["failure"] for candidate in built["candidates"]] == [None]
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 143
    assert user.run("daemon", "run", "--drain").returncode == 0, "nothing that can be done here is left"
