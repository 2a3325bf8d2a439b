"""A machine that is set up wrong: the job is blocked with the reason, no trial is spent, and it goes on when mended."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from autotune.tvm_backend.linker import find_linker

BUDGET = ("--trials", 4, "--trials-per-round", 4)


def run_with(user, words, **environment):
    return subprocess.run(
        user.command(*words), capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def reason_of(user):
    return user.status()[0]["reason"]


def test_without_a_linker_a_drain_spends_nothing_says_why_and_the_next_one_does_the_work(user, models):
    user.ok("submit", models / "mlp.onnx", *BUDGET)
    done = run_with(user, ("daemon", "run", "--drain"), PATH="/nowhere")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("no linker in PATH (/nowhere); install binutils or gcc") == 1
    (job,) = user.status()
    assert (job["state"], job["trials_done"]) == ("waiting", 0)
    assert job["reason"].startswith("blocked: nothing can be compiled here: no linker in PATH (/nowhere)")
    assert not user.trials()
    user.ok("daemon", "run", "--drain")
    (job,) = user.status()
    assert (job["state"], job["trials_done"]) == ("done", 4)
    assert set(user.trials().values()) == {1}


def test_a_running_daemon_goes_on_by_itself_when_the_linker_is_there(user, models, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    linker = find_linker()
    user.ok("submit", models / "mlp.onnx", *BUDGET)
    daemon = subprocess.Popen(
        user.command("daemon", "run"), stderr=subprocess.PIPE, env={**os.environ, "PATH": str(tools)}
    )
    try:
        wait_until(lambda: reason_of(user).startswith("blocked: nothing can be compiled here"))
        (tools / Path(linker).name).symlink_to(linker)
        user.ok("wait", "last", "--timeout", 120)
    finally:
        daemon.terminate()
        daemon.wait(60)
    assert sum(user.trials().values()) == 4


def wait_until(holds, limit_s=120.0):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.2)


@pytest.mark.skipif("avx512_fp16" in Path("/proc/cpuinfo").read_text(), reason="this CPU has the instructions")
def test_a_target_that_cannot_run_here_blocks_its_job_alone(user, models):
    user.ok(
        "submit",
        models / "mlp.onnx",
        "--name",
        "foreign",
        *BUDGET,
        "--target",
        '{"kind": "llvm", "mcpu": "sapphirerapids"}',
    )
    user.ok("submit", models / "mlp.onnx", "--name", "own", *BUDGET)
    done = user.run("daemon", "run", "--drain")
    assert done.returncode == 1
    foreign, own = user.status()
    assert (foreign["state"], foreign["trials_done"]) == ("waiting", 0)
    assert "cannot run what is built for the CPU sapphirerapids" in foreign["reason"]
    assert (own["state"], own["trials_done"]) == ("done", 4)
    assert sum(user.trials().values()) == 4


def test_a_job_that_was_submitted_on_another_machine_is_blocked_and_both_are_named(user, models):
    user.ok("submit", models / "mlp.onnx", *BUDGET)
    (path,) = user.root.glob("jobs/*/spec.json")
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "machine": "Old CPU", "target_key": "llvm-old-0123456789"}))
    assert user.run("daemon", "run", "--drain").returncode == 1
    (job,) = user.status()
    assert job["reason"].startswith("blocked: it was submitted on another machine (Old CPU; this is ")
    path.write_text(json.dumps(spec))
    user.ok("daemon", "run", "--drain")
    assert user.status()[0]["state"] == "done"
