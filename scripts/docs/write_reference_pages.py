#!/usr/bin/env python
"""Write the generated pages of docs/reference from the code, but for the settings (write_settings_page.py).

python scripts/docs/write_reference_pages.py
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import typer

from autotune import api, cli, errors, reasons, strategies
from autotune.options import declared
from autotune.planning import policies
from autotune.stages.blame import InProgress
from autotune.storage import formats, paths
from autotune.storage.confirmation import Confirmation

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
_BY = "Written from {}.\n"

_COMMANDS = """\
`autotune COMMAND --help` prints the same. `--workspace DIR`, before or after the command, names the folder with
`jobs/` and `logs/`; by default it is `$AUTOTUNE_WORKSPACE`, or the current folder. A JOB is a number, a range such as
`3,5-8`, a name, `last` or `all`. `--json`, where a command has it, prints JSON. Data goes to standard output, messages
go to standard error.
"""
_SAID = ("job", "jobs", "as_json")  # what the first lines of the page say of them
_ERRORS = """\
An error is one line on standard error; in Python, a class of `autotune.errors` below `AutotuneError`.
"""
_PYTHON = """\
Every name below is in `autotune`, as in `autotune.submit`. A `workspace` is the folder with jobs/, logs/ and
autotune.toml, and `progress` is called with a description of each step when it starts. What is wrong with what you gave
raises `BadInput`.
"""
_OPTIONS = (
    "the options of [`autotune submit`](commands.md#autotune-submit), with other values for some: one `target`;"
    " `inputs`, `dims` and `values` by name; `deadline` in epoch seconds; `within_s`, `stop_at_ms` and `memory_mb` in"
    " these units; `max_drop` from 0 to 1"
)
_KEYWORDS = "the keywords of [`submit`](#submit)"
# Lines of docstrings that the first lines of the page, or an option above, say already.
_SAID_ALREADY = (
    "workspace: The folder with jobs/, logs/ and autotune.toml.",
    "progress: Called with a description of each step when it starts.",
    "BadInput: The workspace is not a folder.",
    "BadInput: The model, the target, an input, the strategy or the name is wrong. Nothing was changed.",
)
_REASONS = """\
`status` shows a sentence. `status --json` and `report --json` also have its kind, for programs.
"""
_FILES = """\
The files of a workspace. Keep `logs/`: later jobs start from its tuning logs. [If a file is
damaged](../explanation/reliability.md#damage).
"""
_FORMATS = """\
Files are JSON, and logs are JSON lines. A file names its format and version. Older versions are read; a newer one is
refused and left as it is:
"""
_STRATEGIES = """\
A strategy decides which configurations of a task are measured next. `autotune submit MODEL --strategy NAME --sampler
NAME` picks one for a job, `[search] strategy` and `sampler` for a workspace.
"""
_SAMPLERS = """\
A sampler picks the batch from what a strategy explored. `greedy`, the default where nothing else is said, takes the
best of the ranking, and a random share, `search.epsilon`. `adaptive` takes one of each cluster, and replaces those that
were measured before (`search.synthesis`).

[How they work](../explanation/search.md), [how they compare](../explanation/science.md), and [how to add
one](../guides/own-strategy.md).
"""
_POLICIES = """\
[How they work](../explanation/scheduling.md), [how they compare](../explanation/scheduler-measured.md), and [how to try
them](../guides/simulate.md) without a machine.
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
    ]
    for name in cli.VERBS:
        text += _command(f"autotune {name}", root.get_command(None, name), 2)
    return "\n".join(text)


def _command(words: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {words}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    if hasattr(command, "commands"):
        described: dict[str, list[str]] = {}
        for name, verb in command.commands.items():
            options = described[name] = _parameters(verb)
            same = next(
                (other for other in described if options and other != name and described[other] == options), None
            )
            yield from _page_part(
                f"{words} {name}", verb, level + 1, [f"The options of `{words} {same}`."] if same else options
            )
        return
    yield from _page_part(words, command, level, _parameters(command), heading=False)


def _page_part(words: str, command: Any, level: int, options: list[str], heading: bool = True) -> Iterator[str]:
    if heading:
        yield f"{'#' * level} {words}\n"
        yield f"{inspect.cleandoc(command.help or '')}\n"
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    if len(arguments) > 1 or any(argument.name in _SAID for argument in arguments):  # no line below has them all
        yield f"`{' '.join([words, *map(_value, arguments)])}`\n"
    if options:
        yield from [*options, ""]


def _parameters(command: Any) -> list[str]:
    """Return a line for each parameter of which the first lines of the page say nothing."""
    return [_parameter(parameter) for parameter in command.params if parameter.name not in ("help", *_SAID)]


def _value(parameter: Any) -> str:
    """Return what stands for the value of a parameter. Not Typer's own: versions of Typer differ in it."""
    stands_for: str = parameter.metavar or max(parameter.opts, key=len).lstrip("-").replace("-", "_").upper()
    return stands_for


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_value(parameter)}`"
    elif parameter.is_flag:
        name = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    else:
        name = f"`{', '.join(parameter.opts)} {_value(parameter)}`"
    required = " Required." if parameter.required and parameter.param_type_name == "option" else ""
    return f"- {name}: {parameter.help or ''}{required}"


def exit_codes() -> str:
    """Return the page of exit codes, errors and reasons."""
    # What reads a file turns InvalidData into an error that names the file.
    shown = [kind for kind in _subclasses(errors.AutotuneError) if not issubclass(kind, errors.InvalidData)]
    kinds = sorted(shown, key=lambda kind: (kind.exit_code, kind.__name__))
    text = [
        "# Exit codes, errors and reasons\n",
        _BY.format("`autotune/errors.py` and `autotune/reasons.py`"),
        "## Exit codes\n",
        "- 0: All is well.",
        "- 1: A job failed, or the machine, a file or a library is at fault.",
        "- 2: The input is wrong: an option, a file, a job that does not exist. Nothing was changed.",
        f"- {errors.DaemonRunning.exit_code}: A daemon serves this workspace already.",
        f"- {errors.TimedOut.exit_code}: The time limit for waiting was reached.",
        "- 129, 130, 131, 143: The command was ended by SIGHUP, Ctrl-C, SIGQUIT or SIGTERM.",
        "",
        "## Errors\n",
        _ERRORS,
        *_by_code(kinds),
        "## Why a job waits or has ended\n",
        _REASONS,
        *(f"- `{kind}`: {_sentence(kind)}" for kind in _reason_kinds() if _sentence(kind)),
        "",
    ]
    return "\n".join(text)


def _by_code(kinds: list[type[errors.AutotuneError]]) -> Iterator[str]:
    for code, same in groupby(kinds, lambda kind: kind.exit_code):
        yield f"**Exit code {code}**\n"
        yield from (f"- `{kind.__name__}`: {_first(kind)}" for kind in same)
        yield ""


def _subclasses(kind: type[errors.AutotuneError]) -> Iterator[type[errors.AutotuneError]]:
    for subclass in kind.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield subclass
            yield from _subclasses(subclass)


def _first(described: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(described) or "").split("\n\n")[0].split()).replace("``", "`")


def _reason_kinds() -> list[Any]:
    kinds: list[Any] = []
    for kind in get_args(reasons.ReasonKind):
        kinds += get_args(kind) or [kind]
    return kinds


def _sentence(kind: Any) -> str:
    example = reasons.Reason(kind, device="cuda", resources=("cpu0", "cpu1"), detail="DETAIL")
    return reasons.sentence(example).replace("DETAIL", "...").removesuffix("...").removesuffix(": ")


def files() -> str:
    """Return the page of the files of a workspace, and their formats."""
    tree = (paths.__doc__ or "").partition("\n\n")[2]
    kinds = (*vars(formats).values(), Confirmation, InProgress)
    written = [kind for kind in kinds if inspect.isclass(kind) and hasattr(kind, "FORMAT")]
    named = ", ".join(f"`{kind.FORMAT[0]}` {kind.FORMAT[1]}" for kind in written)
    return "\n".join(
        [
            "# Files and formats\n",
            _BY.format("`autotune/storage/paths.py` and `autotune/storage/formats.py`"),
            _FILES,
            f"```text\n{inspect.cleandoc(tree)}\n```\n",
            "## Formats\n",
            _FORMATS,
            f"{named}.\n",
        ]
    )


def strategy_page() -> str:
    """Return the page of search strategies and samplers."""
    text = ["# Search strategies\n", _STRATEGIES, _BY.format("`autotune/strategies/`"), _SAMPLERS]
    names = [*strategies.STRATEGIES, *strategies.BACKEND_STRATEGIES]
    for name in sorted(names, key=lambda name: name != strategies.DEFAULT):
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
        module = f"autotune.tvm_backend.search.{name}"
    else:
        module = strategies.get(name).__module__
    return "\n\n".join((inspect.getdoc(import_module(module)) or "").split("\n\n")[:2])


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
        text += [f"## {name}{default}\n", f"{inspect.getdoc(module)}\n"]
    text.append(_POLICIES)
    return "\n".join(text)


def python() -> str:
    """Return the page of the Python interface."""
    text = [
        "# Python interface\n",
        _PYTHON,
        _BY.format("`autotune/api/`"),
    ]
    for name in sorted(api.__all__, key=lambda name: (not name.islower(), name)):
        text += _described(name, getattr(api, name), 2)
    return "\n".join(text)


def _described(name: str, described: Any, level: int) -> Iterator[str]:
    signature = "" if inspect.isclass(described) or isinstance(described, property) else _signature(described)
    yield f"{'#' * level} {name}\n"
    if signature not in ("", "()"):
        yield f"```text\n{name}{signature}\n```\n" if "\n" in signature else f"`{name}{signature}`\n"
    yield _google(_without_options(inspect.getdoc(described) or "", name))
    if inspect.isclass(described):
        for member, value in vars(described).items():
            public = not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
            if public or isinstance(value, classmethod):
                yield from _described(f"{name}.{member}", getattr(described, member), level + 1)


def _without_options(text: str, name: str) -> str:
    """Return a docstring without the options of `submit`, which the page of commands has."""
    options = dict(declared())
    lines = text.splitlines()
    taken = [index for index, line in enumerate(lines) if line.strip().partition(":")[0] in options]
    if len(taken) < len(options):  # it does not take them: a word of its own has the name of one
        return text
    kept = _OPTIONS if name == "submit" else _KEYWORDS
    described = [*lines[: taken[0]], f"    {kept}", *lines[taken[-1] + 1 :]]
    return "\n".join(line for line in described if not line.endswith(": As in `submit`."))


def _signature(function: Any) -> str:
    """Return the parameters with those defaults that are values. Types are in the code, and options are said once."""
    words = []
    starred = False
    own = inspect.signature(function).parameters.values()
    submit = inspect.signature(api.submit).parameters
    shared = function is not api.submit and set(submit) <= {parameter.name for parameter in own}
    for parameter in own:
        if shared and parameter.name in submit and parameter.kind is parameter.KEYWORD_ONLY:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        prefix = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
        shown = "..." if callable(parameter.default) else repr(parameter.default)
        words.append(f"{prefix}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={shown}"))
    words += ["..."] * shared
    return textwrap.fill(f"({', '.join(word for word in words if word != 'self')})", 110, subsequent_indent="    ")


def _google(text: str) -> str:
    """Return a docstring in Google's style as Markdown: a list of what it takes and raises, each said by a word."""
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        if line in ("Args:", "Returns:", "Raises:", "Attributes:", "Yields:"):
            section = {"Returns:": "Returns: ", "Yields:": "Yields: ", "Raises:": "Raises "}.get(line, " ")
            lines += [""] * (bool(lines) and lines[-1] != "" and not lines[-1].startswith(("- ", "  ")))
        elif section and line.startswith("    ") and not line.startswith("     "):
            if line.strip() not in _SAID_ALREADY:
                lines.append(_item(line.strip(), section.lstrip()))
        elif section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        elif line or not section:
            section = ""
            lines.append(line)
    return "\n".join(lines).rstrip("\n") + "\n"


def _item(line: str, before: str) -> str:
    head, colon, rest = line.partition(": ")
    return f"- {before}`{head}`: {rest}" if colon and " " not in head else f"- {before}{line[0].lower()}{line[1:]}"


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
