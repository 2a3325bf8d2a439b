"""Run the command line: the table of verbs, the options that all verbs share, and the exit codes of errors.

Each verb is one file in `commands/`. The file is imported only when the verb is used: `--help` reads the table.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from autotune.commands.terminal import say
from autotune.errors import AutotuneError, one_line
from autotune.storage.paths import Workspace


class Verb(NamedTuple):
    """A verb of the command line.

    Attributes:
        module: Its module in `autotune.commands`.
        name: The function or the Typer app in the module.
        help: Its line in `--help`.
    """

    module: str
    name: str
    help: str


VERBS = {
    "submit": Verb("submit.submit", "command", "Read a model, extract its tuning tasks and put a job into the queue."),
    "daemon": Verb("daemon.daemon", "app", "Run, start and stop the daemon, which runs the queue."),
    "status": Verb("status", "command", "Show the queue: progress, latency, and why a job waits."),
    "logs": Verb("logs", "command", "Print what happened to a job, stage by stage."),
    "cancel": Verb("control", "cancel", "End jobs for good; their trials stay in the tuning logs."),
    "hold": Verb("control", "hold", "Pause jobs until they are released."),
    "release": Verb("control", "release", "Continue held jobs."),
    "retry": Verb("control", "retry", "Start failed or cancelled jobs again; they keep their trials."),
    "retune": Verb("retune", "command", "Tune the models of ended jobs again: after an upgrade, or for a new target."),
    "wait": Verb("wait", "command", "Wait until jobs have ended."),
    "export": Verb("export.export", "command", "Compile the best kernels so far into a verified library."),
    "plan": Verb("plan", "command", "Print how a model is computed, kernel by kernel, as a file that `submit` takes."),
    "report": Verb("report.report", "command", "Show what jobs achieved and where their time went."),
    "clean": Verb("clean", "command", "Remove jobs that have ended."),
    "sweep": Verb(
        "sweep", "command", "Tune models with several strategies, budgets and seeds, and compare the results."
    ),
    "trials": Verb("trials", "app", "List, export and import trials, to share them between workspaces and machines."),
    "simulate": Verb("simulate", "command", "Simulate jobs and scheduling policies on a machine that you describe."),
    "demo": Verb("demo", "command", "Tune a small model that comes with autotune: a first result within a minute."),
    "doctor": Verb("doctor", "command", "Check whether this machine and this workspace are ready for tuning."),
    "check": Verb("check", "command", "Check that nothing in the workspace is lost, duplicated or stuck."),
}


class _Verbs(TyperGroup):
    """The group of all verbs, which imports a verb when it is used."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        return TyperCommand(cmd_name, help=VERBS[cmd_name].help) if self._listing else _load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _load(name: str) -> Any:
    """Import the module of a verb and return its command."""
    verb = VERBS[name]
    command = getattr(import_module(f"autotune.commands.{verb.module}"), verb.name)
    if isinstance(command, typer.Typer):
        group: Any = typer.main.get_command(command)
        group.name = name
        return group
    single = typer.Typer(add_completion=False)
    single.command(name, help=None if command.__doc__ else verb.help)(command)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=_Verbs,
    help="Tune neural networks for the hardware they run on: submit models, run the daemon, export libraries.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from autotune.version import __version__

        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    workspace: Annotated[
        Path, typer.Option(envvar="AUTOTUNE_WORKSPACE", help="The folder with jobs/, logs/ and autotune.toml.")
    ] = Path(),
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    context.obj = Workspace(workspace)


def _usage(error: Any, command: str) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        say(error.format_message())
    else:
        say(f"autotune: {error.format_message()} (see {command} --help)")
    return 2


def _run(words: list[str]) -> int:
    """Run a command line and return its exit code. An error is printed as one line on standard error."""
    # Some versions of Typer contain click, others depend on it. This finds its classes in both cases.
    usage_error, click_exception = cast(Any, typer.BadParameter.__mro__[1:3])
    try:
        code = app(words, prog_name="autotune", standalone_mode=False)
    except click_exception as error:
        return _usage(error, error.ctx.command_path if isinstance(error, usage_error) and error.ctx else "autotune")
    except AutotuneError as error:
        say(f"autotune: {one_line(error)}")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"autotune: {error.filename or 'input/output'}: {error.strerror or error}")
        return 1
    return code if isinstance(code, int) else 0


def hoist_workspace(words: list[str]) -> list[str]:
    """Move `--workspace DIR` before the verb, so that it may stand anywhere on the command line."""
    hoisted: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            rest += [word, *left]
        elif word == "--workspace":
            hoisted += [word, *([value] if (value := next(left, None)) is not None else [])]
        else:
            (hoisted if word.startswith("--workspace=") else rest).append(word)
    return hoisted + rest


def _open_standard_streams() -> None:
    """Open what the caller has closed, as cron may: a file of ours must not take the place of standard error."""
    for number, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free
            assert opened == number
            setattr(sys, ("stdin", "stdout", "stderr")[number], open(number, mode, closefd=False))  # noqa: SIM115


def main() -> NoReturn:
    """Run the command line."""
    _open_standard_streams()
    try:
        code = _run(hoist_workspace(sys.argv[1:]))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has exited, so we exit without a message
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    sys.exit(code)
