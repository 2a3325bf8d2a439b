"""Files that are damaged under a real daemon: nothing else suffers, nothing is lost.

Most devices are simulated, so that what takes time is the trouble and not TVM.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

from autotune.storage import formats
from autotune.storage.formats import JobState, TaskSpec
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace

from ..waiting import until
from .conftest import User, make_user

TRIALS = 24


def own_task(number: int) -> tuple[TaskSpec, ...]:
    return (TaskSpec("conv", f"{number:016x}", 1, "1x8", 0.5, True),)


@pytest.fixture
def queue(
    workspace: Workspace, simulate: Callable[..., None], make_job: Callable[..., JobPaths]
) -> Callable[[int], list[JobPaths]]:
    """Publishes jobs of one task each, on simulated devices."""
    simulate(devices=2, speed=50.0)

    def publish(count: int) -> list[JobPaths]:
        ids = range(1, count + 1)
        return [
            make_job(id, f"net{id}", own_task(id), "simulated", trials=TRIALS, trials_per_round=8, seed=id)
            for id in ids
        ]

    return publish


@pytest.fixture
def user(workspace: Workspace) -> User:
    return User(workspace.root)


def states(user: User) -> dict[int, tuple[str, int]]:
    return {job["id"]: (job["state"], job["trials_done"]) for job in user.status()}


def test_damaged_jobs_keep_nobody_from_ending_and_go_on_when_they_are_mended(
    user: User, workspace: Workspace, queue: Callable[[int], list[JobPaths]]
) -> None:
    intact, spec, control, stage, state = queue(5)
    saved = spec.spec.read_bytes()
    spec.spec.write_bytes(bytes(len(saved)))
    control.control.write_bytes(control.control.read_bytes()[:-4])
    stage.stage(0, 0).write_text("{")
    stage.artifacts_of(0, 0).mkdir(parents=True)
    state.state.mkdir()
    shutil.copytree(intact.folder, workspace.jobs / "0009-copy")

    first = user.run("daemon", "run", "--drain")
    assert first.returncode == 0 and "Traceback" not in first.stderr, first.stderr
    ended = states(user)
    assert {id: ended[id] for id in (1, 4, 5)} == dict.fromkeys((1, 4, 5), ("done", TRIALS)), first.stderr
    assert ended[3] == ("held", 0), "one that was to be held must not start by damage"
    assert {ended[2][0], ended[9][0]} == {"failed"} and "job 9" in first.stderr and "job 2" in first.stderr
    assert stage.stage(0, 0).with_name("t000-r0000.json.damaged").read_text() == "{"
    assert not stage.artifacts_of(0, 0).exists()

    spec.spec.write_bytes(saved)
    shutil.rmtree(workspace.jobs / "0009-copy")
    user.ok("release", 3)
    user.ok("daemon", "run", "--drain")
    assert states(user) == dict.fromkeys((1, 2, 3, 4, 5), ("done", TRIALS))
    assert sorted(user.trials().values()) == [1] * 5 * TRIALS, "each was measured once"


@pytest.fixture
def daemon(user: User, workspace: Workspace, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a daemon."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        with (tmp_path / "daemon.log").open("w") as log:
            started.append(subprocess.Popen(user.command(*words), stderr=log, text=True))
        return started[0]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_what_the_daemon_says_of_itself_is_written_again(
    user: User,
    workspace: Workspace,
    queue: Callable[[int], list[JobPaths]],
    daemon: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    queue(1)
    process = daemon("daemon", "run")
    until(lambda: states(user) == {1: ("done", TRIALS)}, said=(tmp_path / "daemon.log").read_text)
    workspace.daemon_info.write_bytes(bytes(100))
    second = user.run("daemon", "run", timeout=60)
    assert second.returncode == 75, "the lock says who serves, not this file"
    assert user.run("daemon", "status").returncode == 1
    shutil.copytree(workspace.job_list()[0].folder, workspace.jobs / "0002-copy")  # news for the daemon
    until(lambda: user.run("daemon", "status").returncode == 0, said=(tmp_path / "daemon.log").read_text)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM


def test_a_crafted_program_is_set_aside_and_the_other_tasks_are_tuned(tmp_path: Path, submitted: Path) -> None:
    crafted = make_user(shutil.copytree(submitted, tmp_path / "crafted"))
    (job,) = Workspace(crafted.root).job_list()
    first = read_spec(job).tunable[0]
    program = json.loads(job.task(first).read_text())
    program["nodes"].append({"type": "ffi.Module", "data": {}})
    job.task(first).write_text(json.dumps(program))
    done = crafted.run("daemon", "run", "--drain")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    (state,) = crafted.status()
    assert state["state"] == "done" and "a program has no ffi.Module" in state["reason"], state
    tasks = formats.read(JobState, job.state).tasks
    assert tasks[first].trials == 0 and sum(task.trials for task in tasks) > 0
    assert not list(crafted.root.glob(f"logs/tuning/*/{read_spec(job).tasks[first].hash}.jsonl"))


def test_a_model_that_cannot_be_read_in_time_is_a_line(tmp_path: Path) -> None:
    """Twenty thousand operators take the importer far longer than a second."""
    impatient = make_user(tmp_path / "impatient")
    impatient.settle("[submit]\ntimeout_s = 1\n")
    model = tmp_path / "slow.onnx"
    onnx.save(_chain(20_000), model)
    done = impatient.run("submit", model)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr == (
        f"autotune: reading {model} took more than 1 s and was ended; [submit] timeout_s in autotune.toml allows more\n"
    )
    assert not [path for path in (impatient.root / "jobs").iterdir() if path.is_dir()]


def _chain(length: int) -> onnx.ModelProto:
    """A model of so many operators, each of which reads what the one before it wrote."""
    kinds = itertools.cycle(["Sin", "Cos"])
    nodes = [onnx.helper.make_node(next(kinds), [f"x{at}"], [f"x{at + 1}"]) for at in range(length)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x0", f"x{length}")]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:]))
