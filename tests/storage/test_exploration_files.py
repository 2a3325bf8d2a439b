"""The files of a job whose plan is searched for: what was chosen, and the plan that it was submitted with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.errors import ConfigError
from autotune.plans.exploration import Choice
from autotune.plans.plan import NOTHING, Block, Plan, text
from autotune.storage import formats
from autotune.storage.exploration_files import plan_as_submitted, read_choice
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths


@pytest.fixture
def paths(make_job: Callable[..., JobPaths]) -> JobPaths:
    return make_job(tasks=2, explore=True)


def test_what_a_comparison_found_is_kept_and_a_choice_of_an_older_version_was_not_compared(paths: JobPaths) -> None:
    choice = Choice(step=3, plan=NOTHING, weights=(1, 0), contenders=(0, 0), before=(0, 1), ratio=1.02, returned=True)
    formats.write(paths.choice, choice)
    assert read_choice(paths, read_spec(paths)) == choice
    content = json.loads(paths.choice.read_text())
    del content["ratio"], content["returned"]
    paths.choice.write_text(json.dumps(content))
    assert read_choice(paths, read_spec(paths)) == replace(choice, ratio=None, returned=False)


def test_a_job_without_a_plan_was_submitted_with_one_that_decides_nothing(paths: JobPaths) -> None:
    assert plan_as_submitted(paths) == NOTHING
    plan = Plan(blocks=(Block(operators=("conv2d", "relu"), threads=1),))
    paths.plan.write_text(text(plan))
    assert plan_as_submitted(paths).blocks == plan.blocks
    paths.plan.write_text("[[blocks]")
    with pytest.raises(ConfigError):
        plan_as_submitted(paths)
