"""Print the plan of a job: how its model is computed, kernel by kernel. Or compare two plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from autotune import devices
from autotune.commands.terminal import Json, steps, tell, workspace_of
from autotune.config import Config, load_config
from autotune.daemon import capacity
from autotune.errors import BadInput, BadState
from autotune.network_plan.plan import Plan, differences, read, text
from autotune.processes.messages import PlanRequest
from autotune.schema import plain
from autotune.storage.job_files import in_use, read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.workers import oneshot

Words = Annotated[
    list[str], typer.Argument(metavar="JOB|FILE...", help="A job, or the file of a plan; two for --diff.")
]


def plan_of(
    workspace: Workspace, config: Config, paths: JobPaths, progress: oneshot.TellProgress, entry: str = ""
) -> Plan:
    """Return the plan by which the model of a job is compiled, with the best times of its tasks so far.

    Args:
        workspace: Where the job is.
        progress: Called with a description of each step when it starts.
        entry: The name of its set of shapes; empty where there is one.

    Raises:
        BadInput: It has no such set of shapes.
        BadState: The job compiles no model.
        ModelError: The model does more than call kernels on tensors of fixed sizes.
    """
    spec = read_spec(paths)
    device = devices.kind_of(spec)
    if not (device.exists and device.has_model):
        raise BadState(f"{paths.folder.name} has no plan: no model is compiled for it")
    request = PlanRequest(
        workspace=str(workspace.root.absolute()),
        job=paths.folder.name,
        cpus=capacity.cpus(config).shared_cpus,
        lock_folder=str(config.machine.lock_folder),
        entry=entry,
    )
    with in_use(workspace, paths):
        return oneshot.plan_model(request, config.export.timeout_s, progress).plan


def command(
    context: typer.Context,
    words: Words,
    diff: Annotated[bool, typer.Option("--diff", help="Print what differs between two plans instead.")] = False,
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="NAME", help="For a job with several sets of shapes, the set to show.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Print how the model of a job is computed, kernel by kernel: a file that `submit --plan` takes.

    With --diff, the exit code is 1 if the plans differ.
    """
    if len(words) != 1 + diff:
        raise BadInput("--diff compares two plans; give two jobs or files" if diff else "give one job, or --diff")
    plans = [read(Path(word)) if Path(word).is_file() else _of_job(context, word, shapes, as_json) for word in words]
    if not diff:
        tell(json.dumps(plain(plans[0])) if as_json else text(plans[0]).rstrip())
        return
    lines = list(differences(*plans))
    tell(json.dumps(lines) if as_json else "\n".join(lines) or "the plans are equal")
    raise typer.Exit(1 if lines else 0)


def _of_job(context: typer.Context, word: str, shapes: str, quiet: bool) -> Plan:
    from autotune.commands.jobs import select_one

    workspace = workspace_of(context)
    with steps(quiet) as step:
        return plan_of(workspace, load_config(workspace.config), select_one(workspace, word), step, shapes)
