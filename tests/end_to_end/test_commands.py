"""Jobs that are commands go through the same queue as models, from a space file to an export."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from autotune.storage.journal import StageDone
from autotune.storage.journal import read as read_journal
from autotune.storage.paths import Workspace

from ..waiting import until
from .conftest import MadeOnce, User, make_user
from .test_interruption import kill_all, processes_of

EXAMPLES = Path(__file__).parents[2] / "examples"
TRIALS = 6


@pytest.fixture(scope="module")
def examples(made_once: MadeOnce) -> User:
    """A workspace in which both examples were tuned by one daemon; for looking at, not for changing."""
    if shutil.which("gcc") is None:
        pytest.skip("NO GCC: the example in C was not tuned; install gcc")

    def make(folder: Path) -> None:
        user = make_user(folder)
        for name in ("matmul", "sqlite"):
            user.ok("submit", EXAMPLES / name / f"{name}.toml", "--trials", TRIALS, "--trials-per-round", 3)
        user.ok("daemon", "run", "--drain")

    return User(made_once("commands", make))


def test_both_end_with_their_budgets_and_nothing_is_wrong(examples: User) -> None:
    assert [(job["state"], job["trials_done"]) for job in examples.status()] == [("done", TRIALS)] * 2
    assert set(examples.trials().values()) == {1} and sum(examples.trials().values()) == 2 * TRIALS
    examples.ok("check")


def test_no_measurement_is_made_beside_another(examples: User) -> None:
    spans = measurements(examples)
    assert len(spans) >= 4
    assert all(end <= begin + 0.05 for (_, end), (begin, _) in itertools.pairwise(spans))


def measurements(user: User, name: str = "") -> list[tuple[float, float]]:
    """Return when each measure stage that ended, of one job or of all, was begun and done, in order."""
    jobs = [job for job in Workspace(user.root).job_list() if job.folder.name.endswith(name)]
    events = [event for job in jobs for event in read_journal(job.journal)]
    return sorted(
        (event.began, event.at) for event in events if isinstance(event, StageDone) and event.kind == "measure"
    )


def test_the_export_builds_and_measures_the_best(examples: User, tmp_path: Path) -> None:
    examples.ok("export", "matmul", "--output", tmp_path / "out")
    best = json.loads((tmp_path / "out" / "best.json").read_text())
    assert best["trials"] == TRIALS and best["value"] == pytest.approx(
        sorted(best["measured"])[len(best["measured"]) // 2]
    )
    subprocess.run([tmp_path / "out" / "build.sh"], check=True, timeout=60)
    printed = subprocess.run([tmp_path / "out" / "measure.sh"], check=True, timeout=60, capture_output=True, text=True)
    assert printed.stdout.splitlines()[0] == (EXAMPLES / "matmul" / "sum.txt").read_text().strip()
    assert "took" in printed.stdout


def test_all_results_are_there_in_t4(examples: User, tmp_path: Path) -> None:
    examples.ok("export", "sqlite", "--output", tmp_path)
    document = json.loads((tmp_path / "sqlite_T4.json").read_text())
    results = document["results"]
    assert len(results) == TRIALS and {result["invalidity"] for result in results} == {"correct"}
    best = json.loads((tmp_path / "best.json").read_text())
    speeds = {result["measurements"][0]["value"]: result["configuration"] for result in results}
    assert speeds[max(speeds)] == best["values"], "more queries a second are better"


def test_another_persons_files_in_the_output_folder_stay(examples: User, tmp_path: Path) -> None:
    (tmp_path / "matmul.c").write_text("mine")
    refused = examples.run("export", "matmul", "--output", tmp_path)
    assert refused.returncode == 2 and "that autotune did not make" in refused.stderr
    assert (tmp_path / "matmul.c").read_text() == "mine"


def test_killed_at_random_it_ends_with_every_trial_once(user: User, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    space = tmp_path / "space.toml"
    space.write_text(
        "parameters.a = [1, 2, 3, 4]\nparameters.b = [1, 2, 3]\n"
        "[measure]\nrepeats = 1\nshell = true\n"
        f"command = 'echo {{a}} {{b}} >> {ledger}; setsid sleep 0.02; echo {{a}}{{b}}'\n"
    )
    seed = random.SystemRandom().randrange(10**6)
    moments = random.Random(seed)
    user.ok("submit", space, "--trials", 12, "--trials-per-round", 3)
    logged = 0
    for _ in range(2):
        daemon = user.start("daemon", "run")
        time.sleep(moments.uniform(0.6, 1.6))
        kill_all(user.root, daemon)
        until(lambda: not processes_of(user.root), limit_s=5, said=lambda: "the commands end with the daemon")
        assert sum(user.trials().values()) >= logged, f"trials were lost (seed {seed})"
        logged = sum(user.trials().values())
    user.ok("daemon", "run", "--drain")
    (job,) = user.status()
    assert (job["state"], job["trials_done"]) == ("done", 12), f"seed {seed}"
    assert set(user.trials().values()) == {1} and len(user.trials()) == 12
    assert len(ledger.read_text().splitlines()) <= 12 + 2, "only what was killed in the middle is measured again"
    user.ok("check")


def test_what_another_user_may_have_written_is_not_run(user: User, tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text(f"parameters.a = [1, 2]\n[measure]\ncommand = ['touch', '{tmp_path}/ran']\ntimed = true\n")
    user.ok("submit", space, "--trials", 2)
    (job,) = Workspace(user.root).job_list()
    os.chmod(job.space, 0o666)
    daemon = user.start("daemon", "run")
    until(lambda: "chmod go-w" in user.reason())
    daemon.terminate()
    daemon.communicate(timeout=60)
    assert not (tmp_path / "ran").exists() and not user.trials()


def test_the_commands_of_a_copied_workspace_are_not_run(user: User, tmp_path: Path) -> None:
    """Its files are all this user's, as after `cp -r`, but somebody else submitted it."""
    space = tmp_path / "space.toml"
    space.write_text(f"parameters.a = [1, 2]\n[measure]\ncommand = ['touch', '{tmp_path}/ran']\ntimed = true\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
        user.ok("submit", space, "--trials", 2)
    daemon = user.start("daemon", "run")
    until(lambda: "not of this user" in user.reason())
    daemon.terminate()
    daemon.communicate(timeout=60)
    assert "submit it again" in user.status()[0]["reason"]
    assert not (tmp_path / "ran").exists() and not user.trials()


@pytest.mark.slow
def test_a_model_and_commands_share_a_queue(user: User, models: Path) -> None:
    user.ok("submit", EXAMPLES / "sqlite" / "sqlite.toml", "--trials", TRIALS)
    user.ok("submit", models / "mlp.onnx", "--trials", TRIALS)
    user.ok("daemon", "run", "--drain")
    assert [(job["state"], job["trials_done"]) for job in user.status()] == [("done", TRIALS)] * 2
    test_no_measurement_is_made_beside_another(user)


@pytest.mark.slow
def test_a_model_and_commands_end_with_their_budgets_after_ten_kills(user: User, models: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    space = tmp_path / "space.toml"
    said = f"began=$(date +%s.%N); sleep 0.05; echo {{a}} {{b}} $began $(date +%s.%N) >> {ledger}; echo {{a}}{{b}}"
    space.write_text(
        f"parameters.a = {list(range(1, 9))}\nparameters.b = {list(range(1, 9))}\n"
        f"[measure]\nrepeats = 1\nshell = true\ncommand = '{said}'\n"
    )
    seed = random.SystemRandom().randrange(10**6)
    moments = random.Random(seed)
    user.ok("submit", space, "--trials", 40, "--trials-per-round", 4)
    user.ok("submit", models / "mlp.onnx", "--trials", 40, "--trials-per-round", 4)
    logged = 0
    for _ in range(10):
        daemon = user.start("daemon", "run")
        time.sleep(moments.uniform(0.8, 3.0))
        kill_all(user.root, daemon)
        until(lambda: not processes_of(user.root), limit_s=5)
        assert sum(user.trials().values()) >= logged, f"trials were lost (seed {seed})"
        logged = sum(user.trials().values())
    user.ok("daemon", "run", "--drain")
    assert [(job["state"], job["trials_done"]) for job in user.status()] == [("done", 40)] * 2, f"seed {seed}"
    assert set(user.trials().values()) == {1} and len(user.trials()) == 80, f"seed {seed}"
    lines = [line.split() for line in ledger.read_text().splitlines()]
    assert 40 <= len(lines) <= 40 + 10, "only what was killed in the middle is measured again"
    commands = [(float(began), float(ended)) for _, _, began, ended in lines]
    of_models = measurements(user, "mlp")
    assert of_models and not [pair for pair in itertools.product(commands, of_models) if overlap(*pair)], f"seed {seed}"
    assert not [pair for pair in itertools.combinations(commands, 2) if overlap(*pair)], f"seed {seed}"
    user.ok("check")


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether two spans of time share more than the clocks' error."""
    return min(one[1], other[1]) - max(one[0], other[0]) > 0.02


def test_trials_travel_to_another_workspace_which_tries_the_best_first(
    examples: User, user: User, tmp_path: Path
) -> None:
    examples.ok("trials", "export", tmp_path / "trials.gz", "matmul")
    user.ok("trials", "import", tmp_path / "trials.gz")
    user.ok("submit", EXAMPLES / "matmul" / "matmul.toml", "--trials", 3, "--trials-per-round", 3)
    user.ok("daemon", "run", "--drain")
    examples.ok("export", "matmul", "--output", tmp_path / "theirs")
    user.ok("export", "matmul", "--output", tmp_path / "ours")
    best = json.loads((tmp_path / "theirs" / "best.json").read_text())["values"]
    tried = [
        result["configuration"] for result in json.loads((tmp_path / "ours" / "matmul_T4.json").read_text())["results"]
    ]
    assert best in tried and len(tried) == 3
