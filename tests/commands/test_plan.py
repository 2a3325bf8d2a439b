"""What `plan` refuses, and how it compares two files. That it describes a model is tested where models are exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.commands.plan import plan_of
from autotune.config import Config
from autotune.errors import BadInput, BadState
from autotune.network_plan.plan import Block, Plan, text
from autotune.storage.paths import JobPaths, Workspace


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Runs the command on plans of one block each, which it writes to files."""

    def call(*plans: Block, options: tuple[str, ...] = ()) -> Any:
        files = [tmp_path / f"{number}.toml" for number in range(len(plans))]
        for file, block in zip(files, plans, strict=True):
            file.write_text(text(Plan(blocks=(block,))))
        return CliRunner().invoke(app, ["plan", *options, *map(str, files)])

    return call


def test_plans_that_differ_give_an_exit_code_of_one_and_equal_ones_zero(run) -> None:
    one = Block(operators=("conv2d_1",), threads=2)
    other = Block(operators=("conv2d_1",), threads=1)
    result = run(one, other, options=("--diff",))
    assert (result.exit_code, result.stdout) == (1, "conv2d_1: threads: 2 -> 1\n")
    result = run(*[Block(operators=("conv2d_1",))] * 2, options=("--diff",))
    assert (result.exit_code, result.stdout) == (0, "the plans are equal\n")
    result = run(Block(operators=("conv2d_1",)), options=("--diff",))
    assert isinstance(result.exception, BadInput)
    assert str(result.exception) == "--diff compares two plans; give two jobs or files"


@pytest.mark.parametrize("target", ["simulated", "command"])
def test_a_job_that_compiles_no_model_has_none(
    workspace: Workspace, make_job: Callable[..., JobPaths], target: str
) -> None:
    with pytest.raises(BadState, match="^0001-net has no plan: no model is compiled for it$"):
        plan_of(workspace, Config(), make_job(target=target), print)
