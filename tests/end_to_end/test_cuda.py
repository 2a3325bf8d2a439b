"""Jobs for CUDA, from submit to what every fault leads to, with real cubins on a stand-in for a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT
from autotune.tvm_backend.cuda import runtime

from ..cuda_stand_in import ONE, Gpu, StandIn, compile_libraries
from ..waiting import until

pytestmark = pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")

BUDGET = ("--trials", 4, "--trials-per-round", 2, "--target", "cuda")
QUICK = "[measure]\nverify = false\nmin_repeat_ms = 1\ngpu_spin_up_ms = 1\n"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_libraries(tmp_path_factory.mktemp("cuda_libraries"))


@pytest.fixture
def gpus(libraries, tmp_path, monkeypatch) -> Callable[..., Any]:
    """Puts GPUs into this machine, for the processes that a test starts."""

    def make(*gpus: Any) -> Any:
        stand_in = StandIn.make(libraries, tmp_path / "gpus", gpus or ONE)
        for name, value in stand_in.environment().items():
            monkeypatch.setenv(name, value)
        return stand_in

    return make


@pytest.fixture(scope="session")
def zeros(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose right outputs are zeros, as are those of a GPU that computes nothing."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("MatMul", ["z", "w"], ["y"])]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, 64)) for name in "xy"]
    weight = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    graph = helper.make_graph(nodes, "zeros", tensors[:1], tensors[1:], [weight])
    path = tmp_path_factory.mktemp("zeros") / "zeros.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def job(user):
    (shown,) = user.status()
    return shown


def trials(user):
    return [r for log in user.root.glob("logs/tuning/*/*.jsonl") for r in RecordLog(log, *FORMAT).read()]


def failures(user):
    """The failures in the tuning logs, of the trials that have one."""
    return [record["failure"] for record in trials(user) if record.get("failure")]


@pytest.mark.slow
def test_a_job_is_tuned_but_for_a_candidate_that_crashes_and_its_export_is_verified_against_the_cpu(user, zeros, gpus):
    stand_in = gpus()
    stand_in.fail("illegal")
    user.settle("contenders = 1\n")  # the last section of the file is [export]
    user.settle(QUICK)
    user.ok("submit", zeros, "--trials", 2, "--trials-per-round", 2, "--target", "cuda")
    user.ok("daemon", "run", "--drain")
    assert (job(user)["state"], job(user)["trials_done"]) == ("done", 2)
    (failure,) = failures(user)
    assert (failure["stage"], failure["kind"]) == ("measure", "crash") and "illegal memory access" in failure["reason"]
    (timed,) = (record for record in trials(user) if not record["failure"])
    assert timed["needs"]["registers"] > 0 and min(timed["times_us"]) > 0
    assert set(stand_in.loads()) == {(ONE[0].uuid, "sm_90")}
    stand_in.fail(None)
    printed = user.ok("export", "last", "--output", user.root / "out")
    assert "verified: largest relative error 0, against ONNX Runtime on the CPU" in printed
    report = json.loads((user.root / "out" / "report.json").read_bytes())
    assert report["latency"]["onnxruntime_ms"] is None and report["latency"]["tuned_ms"] > 0
    assert min(stand_in.graphs()) > 0
    assert [kernel["calls"] for kernel in report["kernels"]] == [2], "those in the graph, too"


@pytest.mark.slow
def test_a_job_is_tuned_and_survives_kill_9_with_cubins_of_the_architecture_of_the_gpu(user, models, gpus):
    stand_in = gpus()
    user.settle(QUICK)
    user.ok("submit", models / "mlp.onnx", *BUDGET)
    daemon = subprocess.Popen(user.command("daemon", "run"), start_new_session=True, stderr=subprocess.DEVNULL)
    until(lambda: sum(user.trials().values()) >= 2)
    os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait()
    user.ok("daemon", "run", "--drain")
    assert (job(user)["state"], job(user)["trials_done"]) == ("done", 4)
    assert set(user.trials().values()) == {1}
    assert not failures(user)
    assert min(record["needs"]["registers"] for record in trials(user)) > 0
    assert set(stand_in.loads()) == {(ONE[0].uuid, "sm_90")}
    done = user.run("export", "last", "--output", user.root / "out")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert not list((user.root / "out").glob("*")), "what computes nothing is not exported"


@pytest.mark.slow
def test_an_export_verifies_against_the_cpu_and_compares_no_times_with_it(user, zeros, gpus):
    """In fp16, beside a busy neighbour, after a slow candidate."""
    stand_in = gpus()
    stand_in.fail("slow")
    stand_in.seen((1980, 0, 4711, 60))
    user.settle(QUICK)
    user.ok("submit", zeros, *BUDGET, "--precision", "fp16")
    user.ok("daemon", "run", "--drain")
    times = [time for record in trials(user) for time in record["times_us"]]
    assert max(times) > 20_000 > min(times), "what is slow is no failure, and does not slow others down"
    stand_in.fail(None)
    if importlib.util.find_spec("pynvml"):
        assert {record["disturbed"] for record in trials(user)} == {"other processes used 60% of the GPU"}
    printed = user.ok("export", "last", "--output", user.root / "out", "--untuned")
    assert "timed on the GPU; ONNX Runtime was not timed there" in printed
    assert (
        "verified: largest relative error 0, in fp16, which may have 0.02, against ONNX Runtime on the CPU" in printed
    )
    report = json.loads((user.root / "out" / "report.json").read_bytes())
    for figures in (report["latency"], report["latency_spread"], report["load_ms"], report["memory_mb"]):
        assert set(figures) == {"untuned_ms", "tuned_ms", "without_graph_ms", "onnxruntime_ms"}
        assert figures["onnxruntime_ms"] is None and figures["tuned_ms"] and figures["untuned_ms"]
    assert report["share_of_onnxruntime"] is None and report["tolerance"] == 2e-2
    assert "tuned, its kernels launched one by one" in printed and min(stand_in.graphs()) > 0
    assert len(report["kernels"]) > 1, "those in the graph, too"
    run_with_wheels(user.root / "out" / "run.py", stand_in)
    page = json.loads(user.ok("report", "last", "--json"))
    assert set(page["jobs"][0]["references"]["others_ms"]) == {"library without its CUDA graph"}


def run_with_wheels(script, stand_in):
    """Run it where the driver is in the loader's path, and the CUDA runtime is a Python package."""
    folder = stand_in.folder / "driver"
    packages = stand_in.folder / "packages"
    (packages / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    folder.mkdir()
    shutil.copy(stand_in.libraries / "libcuda.so.1", folder)
    shutil.copy(stand_in.libraries / "libcudart.so.13", packages / "nvidia" / "cu13" / "lib")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(packages)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(64, 64) float32 [0. 0. 0. 0.]")


@pytest.mark.slow
def test_a_gpu_that_is_ill_blocks_its_job_until_it_is_well_and_no_trial_is_spent(user, models, gpus):
    stand_in = gpus()
    user.settle(QUICK.replace("false", "true"))
    user.ok("submit", models / "mlp.onnx", *BUDGET)
    daemon = subprocess.Popen(user.command("daemon", "run"), stderr=subprocess.DEVNULL)
    try:
        until(lambda: "its results are wrong" in user.reason())
        config = user.root / "autotune.toml"
        stand_in.fail("memory")
        config.write_text(config.read_text().replace("verify = true", "verify = false"))
        until(lambda: "its memory is full" in user.reason())
        stand_in.fail("lost")
        until(lambda: "known to be good fails on cuda:0" in (why := user.reason()) and "wrong" not in why)
        assert not user.trials()
        stand_in.fail(None)
        user.ok("wait", "last", "--timeout", 120)
    finally:
        daemon.terminate()
        daemon.wait(60)
    assert (job(user)["state"], job(user)["trials_done"], failures(user)) == ("done", 4, [])


@pytest.mark.slow
def test_a_hanging_kernel_costs_one_candidate_and_hidden_gpus_are_left_alone(user, models, gpus, monkeypatch):
    buses = {"GPU-0c": "00000000:03:00.0", "GPU-0b": "00000000:01:00.0", "GPU-0a": "00000000:02:00.0"}
    stand_in = gpus(*(Gpu(uuid, bus=bus) for uuid, bus in buses.items()))
    stand_in.fail("hang")
    user.settle(f"{QUICK}timeout_s = 4.0\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")  # in PCI order: not the third
    user.ok("submit", models / "mlp.onnx", *BUDGET)
    user.ok("daemon", "run", "--drain")
    assert [failure["kind"] for failure in failures(user)] == ["timeout"]
    used = {uuid for uuid, _ in stand_in.loads()}
    assert used and used <= {"GPU-0a", "GPU-0b"}
    assert job(user)["trials_done"] == 4


@pytest.mark.slow
def test_doctor_says_in_one_line_what_is_wrong_with_a_gpu(user, gpus):
    gpus().fail("lost")
    (note,) = (line for line in user.run("doctor").stdout.splitlines() if "cuda:0" in line)
    assert note.startswith("note  a kernel that is known to be good fails on cuda:0 (Stand-In 90): ")
