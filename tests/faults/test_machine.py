"""A machine that is set up wrong, with the real TVM: no trial is spent, the reason says what helps, and it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import psutil
import pytest

from autotune.commands.job_status import JobStatus, snapshot
from autotune.storage.paths import Workspace
from autotune.tvm_backend.linker import find_linker

from ..end_to_end.conftest import submitted  # noqa: F401
from ..waiting import until
from .conftest import User, make_user

TRIALS = 2
BUDGET = ("--trials", TRIALS, "--trials-per-round", TRIALS)
FOREIGN = '{"kind": "llvm", "mcpu": "bdver4"}'  # its instructions XOP and FMA4 are in no CPU since 2017


@pytest.fixture
def user(submitted: Path, tmp_path: Path) -> User:  # noqa: F811
    """Somebody whose job has not been started."""
    root = shutil.copytree(submitted, tmp_path / "workspace")
    return make_user(root)


@pytest.fixture
def serve(user: User, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a daemon in a changed environment, by other words if need be."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*before: str, **changes: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "daemon.log").open("wb") as log:
            words = [*before, *user.command("daemon", "run")]
            started.append(subprocess.Popen(words, stderr=log, env={**os.environ, **changes}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def first(user: User) -> JobStatus:
    return snapshot(Workspace(user.root))[0]


def ends_well(user: User, log: Path) -> None:
    until(lambda: first(user).state == "done")
    assert (first(user).trials_done, sorted(user.trials().values())) == (TRIALS, [1] * TRIALS)
    assert b"Traceback" not in log.read_bytes()


def test_no_linker_and_then_one(user: User, serve: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    linker = find_linker()
    tools.mkdir()
    serve(PATH=str(tools), TMPDIR=str(tmp_path / "missing"))  # Python and TVM go on with /tmp
    until(lambda: first(user).reason.startswith("blocked: nothing can be compiled here: no linker in PATH"))
    assert not user.trials()
    (tools / Path(linker).name).symlink_to(linker)
    ends_well(user, tmp_path / "daemon.log")


def test_a_temporary_folder_from_which_nothing_may_be_loaded(
    user: User, serve: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec", "none", str(folder)]
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", *mount], check=False).returncode:
        pytest.skip("may not mount a file system here")
    mounted = f'{" ".join(mount)} && exec "$@"'
    daemon = serve("unshare", "-m", "sh", "-c", mounted, "sh", TMPDIR=str(folder))
    until(lambda: "is mounted noexec" in first(user).reason)
    assert str(folder) in first(user).reason and not user.trials()
    inside = ["nsenter", "-t", str(daemon.pid), "-m", "mount", "-o", "remount,exec", str(folder)]
    subprocess.run(inside, check=True)
    ends_well(user, tmp_path / "daemon.log")


@pytest.mark.slow
def test_without_a_linker_a_drain_ends_with_1_and_spends_nothing(user: User) -> None:
    environment = {**os.environ, "PATH": "/nowhere"}
    words = user.command("daemon", "run", "--drain")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("no linker in PATH (/nowhere); install binutils or gcc") == 1
    assert (first(user).state, first(user).trials_done) == ("waiting", 0)
    assert not user.trials()


def test_jobs_for_other_machines_are_blocked_and_one_is_retried_here(
    user: User, serve: Callable[..., subprocess.Popen[bytes]], models: Path
) -> None:
    user.ok("submit", models / "mlp.onnx", "--name", "foreign", *BUDGET, "--target", FOREIGN)
    (path,) = user.root.glob("jobs/*-mlp/spec.json")
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "machine": "Old CPU", "target_key": "llvm-old-0123456789"}))
    serve()
    until(lambda: all(job.reason.startswith("blocked") for job in snapshot(Workspace(user.root))))
    moved, foreign = snapshot(Workspace(user.root))
    assert moved.reason.startswith("blocked: it was submitted on another machine (Old CPU; this is ")
    assert "autotune retry JOB --here" in moved.reason
    assert (foreign.state, foreign.trials_done) == ("waiting", 0)
    assert "cannot run what is built for the CPU bdver4" in foreign.reason
    assert user.ok("retry", "--here", 1) == "job 1 continues as job 3 (mlp-2)\n"
    until(lambda: snapshot(Workspace(user.root))[-1].state == "done")
    old, foreign, new = snapshot(Workspace(user.root))
    assert (old.state, old.trials_done, new.state, new.trials_done) == ("cancelled", 0, "done", TRIALS)
    assert (foreign.state, foreign.trials_done, new.model) == ("waiting", 0, spec["model"])
    again = user.run("retry", "--here", 3)
    assert (again.returncode, again.stderr) == (2, "autotune: cannot retry job 3 here: it is done\n")


def test_an_importer_that_is_killed_is_said_to_want_memory(user: User, tmp_path: Path) -> None:
    model = tmp_path / "slow.onnx"
    onnx.save(_chain(20_000), model)
    submit = subprocess.Popen(user.command("submit", model), stderr=subprocess.PIPE, text=True)
    until(lambda: [child for child in _children(submit) if child.memory_info().rss > 60 << 20])
    for child in _children(submit):
        child.send_signal(signal.SIGKILL)
    _, said = submit.communicate(timeout=60)
    assert submit.returncode == 1
    assert said.startswith("autotune: the process of this import was killed, probably because this machine ran out of")
    assert " MiB that it may take" in said and len(said.splitlines()) == 1
    assert not list((user.root / "jobs").glob(".incoming*"))


def _children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children()
    except psutil.NoSuchProcess:
        return []


def _chain(length: int) -> onnx.ModelProto:
    """A model that takes the importer minutes: each operator reads what the one before it wrote."""
    nodes = [onnx.helper.make_node("Sin", [f"x{at}"], [f"x{at + 1}"]) for at in range(length)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x0", f"x{length}")]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:]))
