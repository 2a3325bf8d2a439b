"""A trial runs the user's commands in a folder of its own, and says whose fault it is when one fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.command_jobs.command_template import Command
from autotune.command_jobs.definition import Build, Check, Definition, File, Measure
from autotune.command_jobs.trial import CommandTrial, TrialSettings
from autotune.errors import CommandMissing, StageTimeout, WorkerError, WrongResult
from autotune.metric import Metric
from autotune.processes.keeper import Keeper
from autotune.storage.trees import remove_tree

MakeTrial = Callable[..., CommandTrial]


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


@pytest.fixture
def trial(tmp_path: Path, keeper: Keeper) -> MakeTrial:
    """Makes a trial of the value 3 of `a`, from the parts of its space."""
    files = tmp_path / "files"
    files.mkdir()
    settings = TrialSettings(files, (), "", build_s=20.0, measure_s=20.0, check_s=20.0)

    def make(**parts: Any) -> CommandTrial:
        definition = Definition(**{"parameters": {"a": (3,)}, "measure": Measure("echo {a}"), **parts})
        definition.check_itself()
        return CommandTrial(definition, {"a": 3}, tmp_path / "trial", settings, keeper)

    return make


def test_values_are_in_placeholders_and_variables(trial: MakeTrial) -> None:
    made = trial(
        measure=Measure("echo $AUTOTUNE_a; echo $TWICE; echo {a}", True, repeats=1), environment={"TWICE": "{a}{a}"}
    )
    made.build()
    assert made.measure(None) == [3000.0]


@pytest.mark.parametrize(
    ("command", "values", "words"),
    [
        (("x", "-O{a}", "{{a}}"), {"a": 3}, ["x", "-O3", "{a}"]),
        (("x", "{a}", ""), {"a": ""}, ["x", ""]),
        (("x", "{a}"), {"a": "two words; rm"}, ["x", "two words; rm"]),
        (("x", "{a}"), {"a": True}, ["x", "true"]),
        (("x", "{a}"), {"a": 0.1}, ["x", "0.1"]),
        (("{a}", "x"), {"a": ""}, ["", "x"]),
        ("x {a}", {"a": "$(id); 'x'"}, ["x", "$(id); 'x'"]),
        ('x \'-D n\' "{a} \\"" {a}', {"a": "y z"}, ["x", "-D n", 'y z "', "y z"]),
    ],
)
def test_a_value_is_one_word_whatever_it_holds(command: Any, values: Any, words: list[str]) -> None:
    assert Command.of(command, shell=False).filled(values) == words


def test_each_trial_has_its_own_copy_of_the_files(trial: MakeTrial) -> None:
    made = trial(files={"in/x.sh": File(0, 0, "", True)}, build=Build("./in/x.sh > built; echo more >> in/x.sh", True))
    source = made.settings.files / "in" / "x.sh"
    source.parent.mkdir()
    source.write_text("#!/bin/sh\necho made\n")
    source.chmod(0o500)
    made.build()
    assert (made.folder / "built").read_text() == "made\n" and "more" not in source.read_text()


@pytest.mark.parametrize(
    ("measure", "metric", "us"),
    [
        (Measure("echo x; echo 2.5; echo", True, repeats=2), Metric(unit="ms"), [2500.0] * 2),
        (
            Measure("echo took 1 ms; echo took 2 ms; echo bye", True, number="took ([0-9]+) ms", repeats=1),
            Metric(),
            [2000.0],
        ),
        (Measure("echo 4", repeats=1), Metric("speed", "1/s", "larger"), [2.5e14]),
    ],
)
def test_the_number_is_found_by_the_stated_rule(
    trial: MakeTrial, measure: Measure, metric: Metric, us: list[float]
) -> None:
    made = trial(measure=measure, metric=metric)
    made.build()
    assert made.measure(None) == us


def test_a_command_may_be_timed(trial: MakeTrial) -> None:
    made = trial(measure=Measure("sleep 0.05", timed=True, repeats=1))
    made.build()
    assert 5e4 <= made.measure(None)[0] < 5e6


def test_what_is_hopeless_is_measured_once(trial: MakeTrial) -> None:
    made = trial(measure=Measure("echo {a} | tee -a runs", True, warmup=1, repeats=4))
    made.build()
    assert len(made.measure(1000.0)) == 1 and len(made.measure(2000.0)) == 4
    assert (made.folder / "runs").read_text().split() == ["3"] * 7


@pytest.mark.parametrize(
    ("measure", "says"),
    [
        (Measure("echo no"), "no number: 'no'"),
        (Measure("echo \u0663.\u0665"), "no number: '\u0663.\u0665'"),
        (Measure("true"), "no number: ''"),
        (Measure("echo x", number="([0-9])"), "nothing that fits"),
        (Measure("echo nan"), "time is nan"),
        (Measure("echo -3"), "time is -3"),
        (Measure("echo bad >&2; exit 4", True), "the measure command exited with 4: bad"),
        (Measure("kill -ABRT $$", True), "was killed by SIGABRT"),
        (Measure(("./made-by-nobody",)), "cannot be run"),
        (Measure(("{a}",)), "cannot be run"),
        (Measure("{a} x", True), "exited with 127"),
        (Measure("true; {a}", True), "exited with 127"),
    ],
)
def test_a_command_that_fails_is_the_candidates_fault(trial: MakeTrial, measure: Measure, says: str) -> None:
    made = trial(measure=measure)
    made.build()
    with pytest.raises(WorkerError, match=says):
        made.measure(None)


@pytest.mark.parametrize("command", [("no-such-program", "{a}"), ("/no/such/program",), "no-such-program {a}"])
def test_a_program_that_is_not_here_is_the_machines_fault(trial: MakeTrial, command: Any) -> None:
    made = trial(measure=Measure(command))
    made.build()
    with pytest.raises(CommandMissing, match=r"'(/no/such/program|no-such-program)' of the measure command"):
        made.measure(None)


def test_time_is_limited_for_all_runs_together(trial: MakeTrial) -> None:
    made = trial(measure=Measure("sleep 0.2; echo 1", True, repeats=100))
    made = CommandTrial(
        made.definition, made.values, made.folder, TrialSettings(made.settings.files, (), "", 20, 0.5, 20), made.keeper
    )
    made.build()
    with pytest.raises(StageTimeout):
        made.measure(None)


def test_what_a_trial_writes_is_limited(trial: MakeTrial) -> None:
    made = trial(disk_mb=1, build=Build("head -c 800000 /dev/zero > x; head -c 800000 /dev/zero > y", True))
    with pytest.raises(WorkerError, match="disk_mb allows 1"):
        made.build()


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (Check("exit 0", True), ""),
        (Check("exit 1", True), "exited with 1"),
        (Check("echo 1.0 x", output="want"), ""),
        (Check("echo 1.001 x", output="want", tolerance=0.01), ""),
        (Check("echo 1.1 x", output="want", tolerance=0.01), "'1.1' in place of '1.0' as word 1"),
        (Check("echo 1.0 y", output="want"), "'y' in place of 'x' as word 2"),
        (Check("echo 1.0", output="want"), "1 words in place of 2"),
        (Check(output="want"), "'3' in place of '1.0'"),
    ],
)
def test_a_check_compares_what_is_printed(trial: MakeTrial, check: Check, wrong: str) -> None:
    made = trial(check=check)
    (made.settings.files / "want").write_text("1.0 x\n")
    made.build()
    if not wrong:
        made.check()
        return
    with pytest.raises(WrongResult, match=wrong):
        made.check()


def test_a_tree_that_no_path_reaches_is_measured_like_any_other(trial: MakeTrial) -> None:
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('x', 'w').write('x' * 2_000_000)"
    made = trial(build=Build((sys.executable, "-c", deep)))
    made.build()
    assert made.measure(None) == [3000.0] * 3
    made = replace(made, definition=replace(made.definition, disk_mb=1))
    with pytest.raises(WorkerError, match="disk_mb allows 1"):
        made.measure(None)
    remove_tree(made.folder)


def test_a_build_that_removes_its_folder_has_failed(trial: MakeTrial) -> None:
    with pytest.raises(WorkerError, match="its folder cannot be read"):
        trial(build=Build('rm -r "$PWD"', shell=True)).build()
