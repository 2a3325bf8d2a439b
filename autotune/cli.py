"""The commands: parse, call, print, exit code. Nothing else prints."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from autotune import config as settings
from autotune.commands.arguments import hoist_workspace
from autotune.commands.daemon import app as daemon_app
from autotune.commands.terminal import Json
from autotune.commands.terminal import say as _say
from autotune.commands.terminal import show as _print
from autotune.commands.terminal import workspace_of as _workspace
from autotune.errors import AutotuneError, BadInput, one_line
from autotune.storage.paths import Workspace

app = typer.Typer(
    help="Tune neural networks for the hardware they run on: submit models, run the daemon, export libraries.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(daemon_app, name="daemon")

Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="7, 3,5-8, a name, last, all")]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="7, a name or last")]


def _version(wanted: bool) -> None:
    if wanted:
        from autotune import __version__

        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    workspace: Annotated[
        Path, typer.Option(envvar="AUTOTUNE_WORKSPACE", help="The folder with jobs/, logs/ and autotune.toml.")
    ] = Path(),
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    context.obj = Workspace(workspace)


@contextlib.contextmanager
def _steps(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Shows the step that long work is at: live on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(text)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Shows how much of long work is done: live on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("kills", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command()
def submit(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    target: Annotated[str, typer.Option(help="llvm (this machine), cuda, simulated, or JSON.")] = "llvm",
    name: Annotated[str, typer.Option(help="Name of the job; by default the file's.")] = "",
    trials: Annotated[int, typer.Option(min=0, help="Trials to spend; 0: as in autotune.toml.")] = 0,
    trials_per_round: Annotated[int, typer.Option(min=0, help="Trials a round; 0: as in autotune.toml.")] = 0,
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1x3x224x224[:float32]", help="Shape of an input.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Count only trials measured from now on.")] = False,
    deadline: Annotated[
        str, typer.Option(metavar="HH:MM", help="When it should have ended: 07:00, or 2026-03-01T07:00.")
    ] = "",
    strategy: Annotated[str, typer.Option(help="Search strategy; by default as in autotune.toml.")] = "",
    sampler: Annotated[str, typer.Option(help="greedy or adaptive; by default the strategy's own.")] = "",
    winograd: Annotated[
        bool,
        typer.Option(
            help="On CPUs, Winograd's algorithm for 3x3 convolutions where it should be faster; it rounds more."
        ),
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the tasks and write nothing.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the job's id.")] = False,
    as_json: Json = False,
) -> None:
    """Read a model, extract its tuning tasks and put a job into the queue."""
    from autotune.commands import render
    from autotune.commands import submit as submitting
    from autotune.storage.formats import to_json

    workspace = _workspace(context)
    config = settings.load(workspace.config)
    inputs = submitting.parse_inputs(input or [])
    due = submitting.parse_deadline(deadline, time.time()) if deadline else None
    request = submitting.Submission(
        model, target, name, trials, trials_per_round, inputs, priority, seed, fresh, due, strategy, sampler, winograd
    )
    with _steps(quiet) as step:
        if dry_run:
            found = submitting.preview(request, config, step)
        else:
            spec = submitting.submit(workspace, config, request, step)
    if dry_run:
        _print(json.dumps(to_json(found))) if as_json else _print(render.preview(found))
    elif as_json:
        typer.echo(json.dumps({"id": spec.id, "name": spec.name, "tasks": len(spec.tasks), "trials": spec.trials}))
    else:
        typer.echo(str(spec.id))
        if not quiet:
            _say(f"job {spec.id} ({spec.name}): {len(spec.tunable)} tasks to tune, {spec.trials} trials")
            if spec.trials < len(spec.tunable):
                _say(f"warning: {spec.trials} trials do not reach all {len(spec.tunable)} tasks; give more --trials")


@app.command()
def status(
    context: typer.Context,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help="7, 3,5-8, a name, last, all")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show the queue: what runs, how far it is, and why each waiting job waits."""
    from autotune.commands import render
    from autotune.commands import status as reading
    from autotune.commands.jobs import select
    from autotune.storage.daemon_info import running_daemon

    workspace = _workspace(context)
    if not watch:
        gc.disable()  # what a look makes lives until the process ends, and looking through it takes a sixth of the time

    def look() -> list[Any]:
        chosen = select(workspace, jobs) if jobs else None
        found = reading.snapshot(workspace, chosen)
        if as_json:
            return [json.dumps(reading.to_json(found))]
        shown = [render.queue(found, running_daemon(workspace))]
        return [*shown, "", render.tasks(found[0])] if jobs and len(found) == 1 else shown

    if watch and sys.stdout.isatty():
        from rich.console import Group
        from rich.live import Live

        with Live(Group(*look()), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(1)
                live.update(Group(*look()), refresh=True)
    while True:
        typer.echo(look()[0]) if as_json else _print(*look())
        if not watch:
            return
        time.sleep(1)


@app.command()
def logs(
    context: typer.Context,
    job: OneJob,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
) -> None:
    """Print what happened to a job, stage by stage."""
    from autotune.commands import logs, render
    from autotune.commands.jobs import select_one

    workspace = _workspace(context)
    for record in logs.records(workspace, select_one(workspace, job), follow):
        typer.echo(render.journal_line(record))


def _control(verb: str) -> Callable[..., None]:
    def command(context: typer.Context, jobs: Jobs) -> None:
        from autotune.commands import control
        from autotune.commands.jobs import select

        workspace = _workspace(context)
        for line in control.apply(workspace, verb, select(workspace, jobs)):
            typer.echo(line)

    return command


app.command("cancel", help="End jobs for good; their trials stay known.")(_control("cancel"))
app.command("hold", help="Start no more stages of jobs until they are released.")(_control("hold"))
app.command("release", help="Let held jobs go on.")(_control("release"))
app.command("retry", help="Start failed or cancelled jobs again, from the trials they have.")(_control("retry"))


@app.command()
def wait(
    context: typer.Context,
    jobs: Jobs,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Give up after S seconds (exit 124).")
    ] = None,
) -> None:
    """Block until jobs have ended. Exit code 1 when one of them failed or was cancelled."""
    from autotune.commands import wait as waiting
    from autotune.commands.jobs import select

    workspace = _workspace(context)
    found = waiting.wait(workspace, select(workspace, jobs), timeout)
    for job in found:
        typer.echo(f"job {job.id} ({job.name}): {job.state}{': ' + job.reason if job.reason else ''}")
    if any(job.state != "done" for job in found):
        raise typer.Exit(1)


@app.command()
def export(
    context: typer.Context,
    job: OneJob,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write to.")],
    as_json: Json = False,
) -> None:
    """Hand over the best so far: compile, verify against ONNX Runtime, compare, write the library."""
    from autotune.commands import export as exporting
    from autotune.commands import render
    from autotune.commands.jobs import select_one

    workspace = _workspace(context)
    config = settings.load(workspace.config)
    with _steps(as_json) as step:
        found = exporting.export(workspace, config, select_one(workspace, job), output, step)
    typer.echo(json.dumps(found) if as_json else render.report(found, str(output)))


@app.command()
def report(
    context: typer.Context,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help="7, 3,5-8, a name, last, all")] = None,
    every: Annotated[bool, typer.Option("--all", help="All jobs.")] = False,
    as_json: Json = False,
) -> None:
    """Say where the time of jobs went: in stages, waiting, or without a daemon."""
    from autotune.commands import render
    from autotune.commands import report as reporting
    from autotune.commands.jobs import select

    workspace = _workspace(context)
    if bool(jobs) == every:
        raise BadInput("give JOB..., or --all")
    found = reporting.reports(workspace, workspace.job_list() if every else select(workspace, jobs or []), time.time())
    typer.echo(json.dumps(reporting.to_json(found))) if as_json else _print(render.times(found))


@app.command()
def clean(
    context: typer.Context,
    finished: Annotated[bool, typer.Option("--finished", help="Remove jobs that have ended.")] = False,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="... at least so long ago: 7d, 12h.")] = "",
) -> None:
    """Remove jobs that have ended. Tuning logs are kept."""
    from autotune.commands import clean as cleaning

    if not finished and not older_than:
        raise BadInput("give --finished, or --older-than 7d")
    age = cleaning.parse_age(older_than) if older_than else 0.0
    gone = cleaning.clean(_workspace(context), age)
    typer.echo(f"removed {len(gone)} jobs" + "".join(f"\n  {paths.folder.name}" for paths in gone))


@app.command()
def simulate(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO.toml", help="A machine, jobs, and how long stages take.")
    ],
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="May be given again; by default all.")
    ] = None,
    gantt: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|html", help="Draw what ran when.")] = None,
    as_json: Json = False,
) -> None:
    """Play jobs on a described machine under scheduling policies, and compare what they make of it."""
    from autotune.commands import gantt as drawing
    from autotune.commands import render
    from autotune.commands import simulate as simulating

    if gantt is not None:
        drawing.check(gantt)
    found = simulating.run(simulating.read(scenario), policy or [], record=gantt is not None)
    words = json.dumps([simulating.to_json(outcome) for outcome in found]) if as_json else ""
    typer.echo(words) if as_json else _print(render.outcomes(found))
    if gantt is not None:
        drawing.save(gantt, found)


@app.command()
def doctor(context: typer.Context) -> None:
    """Say what this machine has, and what would go wrong. Exit code 1 when something would."""
    from autotune.commands import doctor as checking

    findings = checking.examine(_workspace(context))
    for finding in findings:
        typer.echo(f"{'ok  ' if finding.ok else 'FAIL' if finding.fatal else 'note'}  {finding.text}")
    if any(finding.fatal and not finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command()
def check(context: typer.Context) -> None:
    """Verify that nothing in the workspace is lost, doubled or stuck. Exit code 1 when something is."""
    from autotune.commands.check import check as examine

    problems = examine(_workspace(context))
    for line in problems:
        typer.echo(line)
    if problems:
        raise typer.Exit(1)
    _say("nothing is wrong")


@app.command()
def selftest(
    context: typer.Context,
    chaos: Annotated[bool, typer.Option("--chaos", help="Many rounds rather than a quick one.")] = False,
    rounds: Annotated[
        int | None, typer.Option(min=0, help="Queues to break; 0: until somebody died at every step.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Make the plan of an earlier run again.")] = None,
) -> None:
    """Kill the processes of queues on this disk at every durable step, and see that nothing is lost.

    Works in a temporary folder in the workspace, and needs no model. Exit code 1 when something was lost.
    """
    from autotune.commands.selftest import selftest as testing

    count = rounds if rounds is not None else testing.CHAOS_ROUNDS if chaos else testing.QUICK_ROUNDS
    with _bar() as progress:
        verdict = testing.selftest(_workspace(context).root, count, testing.draw_seed(seed), progress)
    for line in verdict.losses:
        typer.echo(line)
    typer.echo(str(verdict))
    if not verdict.ok:
        raise typer.Exit(1)


def _usage(error: Any, command: str) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        _say(error.format_message())
    else:
        _say(f"autotune: {error.format_message()} (see {command} --help)")
    return 2


def _run(words: list[str]) -> int:
    """The exit code of a command line; every error that is ours or the user's is one line on standard error."""
    # Typer brings click along in some versions and depends on it in others; its classes are found either way.
    usage_error, click_exception = cast(Any, typer.BadParameter.__mro__[1:3])
    try:
        code = app(words, prog_name="autotune", standalone_mode=False)
    except click_exception as error:
        return _usage(error, error.ctx.command_path if isinstance(error, usage_error) and error.ctx else "autotune")
    except AutotuneError as error:
        _say(f"autotune: {one_line(error)}")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        _say(f"autotune: {error.filename or 'input/output'}: {error.strerror or error}")
        return 1
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Run the command line."""
    try:
        code = _run(hoist_workspace(sys.argv[1:]))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone; so shall we, silently
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    sys.exit(code)
