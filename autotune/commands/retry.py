"""Retry jobs: start them again as they are, or submit those of another machine again for this one."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.commands import control
from autotune.commands.terminal import Jobs, steps, tell, workspace_of


def command(
    context: typer.Context,
    jobs: Jobs,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="For jobs of another machine: submit them again for this one, and cancel the old ones."
        ),
    ] = False,
) -> None:
    """Start failed or cancelled jobs again; they keep their trials."""
    from autotune.commands.jobs import select

    workspace = workspace_of(context)
    found = select(workspace, jobs)
    if not here:
        for line in control.apply(workspace, "retry", found):
            tell(line)
        return
    from autotune.commands.submit.again import resubmit_here  # here, for it loads what `submit` does
    from autotune.config import load_config

    config = load_config(workspace.config)
    for paths in found:
        with steps() as step:
            spec = resubmit_here(workspace, config, paths, step)
        tell(f"job {paths.id} continues as job {spec.id} ({spec.name})")
