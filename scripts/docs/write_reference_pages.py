#!/usr/bin/env python
"""Write the generated pages of docs/reference from the code, but for the settings (write_settings_page.py).

python scripts/docs/write_reference_pages.py
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import typer

from autotune import api, cli, errors, reasons, strategies
from autotune.options import declared
from autotune.planning import policies
from autotune.stages.candidate_progress import InProgress
from autotune.storage import formats, paths
from autotune.storage.confirmation import Confirmation

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
_BY = "This page is written by `python scripts/docs/write_reference_pages.py` from {}.\n"

_COMMANDS = """\
`autotune COMMAND --help` prints the same. `--workspace DIR`, before or after the command, names the folder with
`jobs/` and `logs/`; by default it is `$AUTOTUNE_WORKSPACE`, or the current folder. A JOB is a number, a range such as
`3,5-8`, a name, `last` or `all`. `--json`, where a command has it, prints JSON. Data goes to standard output, messages
go to standard error.
"""
_SAID = ("job", "jobs", "as_json")  # what the first lines of the page say of them
_ERRORS = """\
An error is one line on standard error. In Python, each is a class in `autotune.errors` that derives from
`AutotuneError`.
"""
_OPTIONS = "the options of [`autotune submit`](commands.md#autotune-submit), of which these take other values:"
_REASONS = """\
`status` shows a sentence for each reason. `status --json` and `report --json` also have its kind. Programs should use
the kind.
"""
_FILES = """\
A workspace is one folder. Keep `logs/`: later jobs start from its tuning logs. `autotune clean` removes the folders of
jobs that have ended. [Reliability](../explanation/reliability.md#damage) says what happens if a file is damaged.
"""
_FORMATS = """\
Files are JSON, and logs are JSON lines. Each file names its format and version. Older versions are read. A newer
version is refused and left as it is.
"""
_STRATEGIES = """\
A strategy decides which configurations of a task are measured next. `autotune submit MODEL --strategy NAME --sampler
NAME` picks one for a job, `strategy` and `sampler` in `[search]` for a workspace.
"""
_SAMPLERS = """\
A sampler picks the batch from what a strategy explored. Each strategy works with either. `greedy`, the default where
nothing else is said, measures the best of the ranking, and a random share, `search.epsilon`. `adaptive` clusters the
explored configurations and measures one of each cluster. It replaces configurations that were measured before by a
synthesis (`search.synthesis`).

[Search](../explanation/search.md) explains how strategies work, and [search,
measured](../explanation/search-measured.md) compares them. You can add [a strategy of your
own](../guides/own-strategy.md).
"""
_POLICIES = """\
[Scheduling](../explanation/scheduling.md) explains how policies work, and [scheduling,
measured](../explanation/scheduler-measured.md) compares them. [`simulate`](../guides/simulate.md) tries them without a
machine.
"""


def main() -> None:
    """Write the pages."""
    for name, write in PAGES.items():
        path = FOLDER / f"{name}.md"
        path.write_text(write())
        print(f"wrote {path}")


def commands() -> str:
    """Return the page of all commands with their arguments and options."""
    root: Any = typer.main.get_command(cli.app)
    text = [
        "# Commands\n",
        _COMMANDS,
        _BY.format("the commands themselves"),
        " · ".join(f"[`{name}`](#autotune-{name})" for name in cli.VERBS) + "\n",
    ]
    for name in cli.VERBS:
        text += _command(f"autotune {name}", root.get_command(None, name), 2)
    return "\n".join(text)


def _command(words: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {words}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from _command(f"{words} {name}", each, level + 1)
        return
    shown = [each for each in command.params if each.name != "help"]
    arguments = [_value(each) for each in shown if each.param_type_name == "argument"]
    options = ["[OPTIONS]"] if len(arguments) < len(shown) else []
    yield f"```text\n{' '.join([words, *options, *arguments])}\n```\n"
    described = [line for each in shown if each.name not in _SAID and (line := _parameter(each))]
    if described:
        yield from [*described, ""]


def _value(parameter: Any) -> str:
    """Return what stands for the value of a parameter. Not Typer's own: versions of Typer differ in it."""
    found: str = parameter.metavar or max(parameter.opts, key=len).lstrip("-").replace("-", "_").upper()
    return found


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_value(parameter)}`"
    elif parameter.is_flag:
        name = ", ".join(f"`{each}`" for each in [*parameter.opts, *parameter.secondary_opts])
    else:
        name = f"`{', '.join(parameter.opts)} {_value(parameter)}`"
    required = " Required." if parameter.required and parameter.param_type_name == "option" else ""
    return f"- {name}: {parameter.help or ''}{required}"


def exit_codes() -> str:
    """Return the page of exit codes, errors and reasons."""
    kinds = sorted(_subclasses(errors.AutotuneError), key=lambda kind: (kind.exit_code, kind.__name__))
    text = [
        "# Exit codes, errors and reasons\n",
        _BY.format("`autotune/errors.py` and `autotune/reasons.py`"),
        "## Exit codes\n",
        "| code | meaning |\n|---|---|",
        "| 0 | All is well. |",
        "| 1 | A job failed, or the machine, a file or a library is at fault. |",
        "| 2 | The input is wrong: an option, a file, a job that does not exist. Nothing was changed. |",
        f"| {errors.DaemonRunning.exit_code} | A daemon serves this workspace already. |",
        f"| {errors.TimedOut.exit_code} | The time limit for waiting was reached. |",
        "| 129, 130, 131, 143 | The command was ended by SIGHUP, Ctrl-C, SIGQUIT or SIGTERM. |",
        "",
        "## Errors\n",
        _ERRORS,
        "| error | code | meaning |\n|---|---|---|",
        *(f"| `{kind.__name__}` | {kind.exit_code} | {_first(kind)} |" for kind in kinds),
        "",
        "## Why a job waits or has ended\n",
        _REASONS,
        *(f"- `{kind}`: {_sentence(kind)}" for kind in _reason_kinds() if _sentence(kind)),
        "",
    ]
    return "\n".join(text)


def _subclasses(kind: type[errors.AutotuneError]) -> Iterator[type[errors.AutotuneError]]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from _subclasses(each)


def _first(described: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(described) or "").split("\n\n")[0].split()).replace("``", "`")


def _reason_kinds() -> list[Any]:
    found: list[Any] = []
    for each in get_args(reasons.ReasonKind):
        found += get_args(each) or [each]
    return found


def _sentence(kind: Any) -> str:
    example = reasons.Reason(kind, device="cuda", resources=("cpu0", "cpu1"), detail="DETAIL")
    return reasons.sentence(example).replace("DETAIL", "...").removesuffix("...").removesuffix(": ")


def files() -> str:
    """Return the page of the files of a workspace, and their formats."""
    tree = (paths.__doc__ or "").partition("\n\n")[2]
    kinds = (*vars(formats).values(), Confirmation, InProgress)
    written = [kind for kind in kinds if inspect.isclass(kind) and hasattr(kind, "FORMAT")]
    rows = (f"| `{each.FORMAT[0]}` | {each.FORMAT[1]} | {_first(each)} |" for each in written)
    return "\n".join(
        [
            "# Files and formats\n",
            _BY.format("`autotune/storage/paths.py` and `autotune/storage/formats.py`"),
            _FILES,
            f"```text\n{inspect.cleandoc(tree)}\n```\n",
            "## Formats\n",
            _FORMATS,
            "| format | version | content |\n|---|---|---|",
            *rows,
            "",
        ]
    )


def strategy_page() -> str:
    """Return the page of search strategies and samplers."""
    text = ["# Search strategies\n", _STRATEGIES, _BY.format("`autotune/strategies/`"), _SAMPLERS]
    known = [*strategies.STRATEGIES, *strategies.BACKEND_STRATEGIES]
    for name in sorted(known, key=lambda name: name != strategies.DEFAULT):
        default = " (the default)" if name == strategies.DEFAULT else ""
        text += [
            f"## {name}{default}\n",
            f"{_strategy(name)}\n",
            *(
                [f"Default sampler: `{sampler}`.\n"]
                if (sampler := strategies.default_sampler(name)) != "greedy"
                else []
            ),
        ]
    return "\n".join(text)


def _strategy(name: str) -> str:
    if name in strategies.BACKEND_STRATEGIES:
        return inspect.getdoc(import_module(f"autotune.tvm_backend.search.{name}")) or ""
    return inspect.getdoc(import_module(strategies.get(name).__module__)) or ""


def policy_page() -> str:
    """Return the page of scheduling policies."""
    text = [
        "# Scheduling policies\n",
        "A policy decides which stage runs next. `[daemon] policy` or `autotune daemon run --policy NAME` picks one.\n",
        _BY.format("`autotune/planning/policies/`"),
    ]
    for name in sorted(policies.POLICIES, key=lambda name: name != policies.DEFAULT):
        default = " (the default)" if name == policies.DEFAULT else ""
        module = import_module(type(policies.get(name)).__module__)
        text += [f"## {name}{default}\n", f"{inspect.getdoc(module)}\n", f"{_first(type(policies.get(name)))}\n"]
    text.append(_POLICIES)
    return "\n".join(text)


def python() -> str:
    """Return the page of the Python interface."""
    text = [
        "# Python interface\n",
        "Every name below is in `autotune`, as in `autotune.submit`.\n",
        _BY.format("`autotune/api/`"),
    ]
    for name in sorted(api.__all__, key=lambda name: (not name.islower(), name)):
        text += _described(name, getattr(api, name), 2)
    return "\n".join(text)


def _described(name: str, found: Any, level: int) -> Iterator[str]:
    signature = "" if inspect.isclass(found) or isinstance(found, property) else _signature(found)
    yield f"{'#' * level} {name}\n"
    if signature not in ("", "()"):
        yield f"```text\n{name}{signature}\n```\n"
    yield _google(_without_options(inspect.getdoc(found) or ""))
    if inspect.isclass(found):
        for member, value in vars(found).items():
            public = not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
            if public or isinstance(value, classmethod):
                yield from _described(f"{name}.{member}", getattr(found, member), level + 1)


def _without_options(text: str) -> str:
    """Return a docstring without the options of `submit` that take the same values as on the command line."""
    options = dict(declared())
    same = [f"    {name}: {option.help}" for name, option in options.items() if not option.python]
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.strip().partition(":")[0] in options), None)
    if first is None or not set(same) & set(lines):
        return text
    said = [*lines[:first], f"    {_OPTIONS}", *lines[first:]]
    return "\n".join(line for line in said if line not in same)


def _signature(function: Any) -> str:
    """Return the parameters with those defaults that are values. Types are in the code."""
    words = []
    starred = False
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        prefix = {each.VAR_KEYWORD: "**", each.VAR_POSITIONAL: "*"}.get(each.kind, "")
        shown = "..." if callable(each.default) else repr(each.default)
        words.append(f"{prefix}{each.name}" + ("" if each.default is each.empty else f"={shown}"))
    return textwrap.fill(f"({', '.join(word for word in words if word != 'self')})", 110, subsequent_indent="    ")


def _google(text: str) -> str:
    """Return a docstring in Google's style as Markdown: each section is a list."""
    lines: list[str] = []
    section = False
    for line in text.splitlines():
        if line in ("Args:", "Returns:", "Raises:", "Attributes:", "Yields:"):
            section = True
            lines += [f"**{line.removesuffix(':').replace('Args', 'Arguments')}**", ""]
        elif section and line.startswith("    ") and not line.startswith("     "):
            head, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{head}`: {rest}" if colon and " " not in head else f"- {line.strip()}")
        elif section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            section = section and not line
            lines.append(line)
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "files": files,
    "policies": policy_page,
    "python": python,
    "strategies": strategy_page,
}

if __name__ == "__main__":
    main()
