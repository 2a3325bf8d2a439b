"""A program sees exactly the value of a parameter, or its command is refused before anything runs."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.command_jobs.command_template import Command, Value, text_of
from autotune.command_jobs.definition import Build, Definition, Measure
from autotune.command_jobs.trial import variables
from autotune.errors import InvalidData

# Prints its arguments, or its input where it has none, as Python.
SEES = "import sys; print(ascii(sys.argv[1:] if len(sys.argv) > 1 else sys.stdin.read()))"
PYTHON = f"{sys.executable} -ISXutf8 -c {shlex.quote(SEES.replace('{', '{{').replace('}', '}}'))}"
# A command around a value, whether a shell runs it, and what the program sees of the value.
CONTEXTS: list[tuple[str, bool, str | list[str]]] = [
    ("PROGRAM x {a}", False, ["x", "VALUE"]),
    ("PROGRAM x '{a}'", False, ["x", "VALUE"]),
    ('PROGRAM x "{a}"', False, ["x", "VALUE"]),
    ("PROGRAM x-{a}-y", False, ["x-VALUE-y"]),
    ("PROGRAM x {a}", True, ["x", "VALUE"]),
    ("PROGRAM x '{a}'", True, ["x", "VALUE"]),
    ('PROGRAM x "{a}"', True, ["x", "VALUE"]),
    ('PROGRAM x "$AUTOTUNE_a"', True, ["x", "VALUE"]),
    ('cc="x {a}"; PROGRAM "$cc"', True, ["x VALUE"]),
    ('PROGRAM x "$(printf "%s." {a})"', True, ["x", "VALUE."]),
    ('PROGRAM x "$(printf "%s." "$(echo "{a}")")"', True, ["x", "VALUE."]),
    ('PROGRAM x "`printf %s. {a}`"', True, ["x", "VALUE."]),
    ('PROGRAM x `printf "%s." \'{a}\'`', True, ["x", "VALUE."]),
    ("PROGRAM <<END\nx {a} y\nEND\n", True, "x VALUE y\n"),
    ("PROGRAM <<'END'\nx {a} y\nEND\n", True, "x VALUE y\n"),
    ("PROGRAM <<-END\n\t{a}\nEND\n", True, "VALUE\n"),
    ("PROGRAM <<END\nE{a}D\nEND\n", True, "EVALUED\n"),
    ("PROGRAM x ${{AUTOTUNE_b}}{a}", True, ["x", "bVALUE"]),
    ("PROGRAM x $AUTOTUNE_b{a}", True, ["x", "bVALUE"]),
    ("PROGRAM x {a}>&1", True, ["x", "VALUE"]),
    ('PROGRAM x "$(( {a} ))"', True, ["x", "VALUE"]),
]  # fmt: skip
HOSTILE = (
    *("$(touch PWNED)", "`touch PWNED`", ";touch PWNED", "&touch PWNED", "|touch PWNED", "\ntouch PWNED\n", "' ; \" ;"),
    *(
        '";touch PWNED;"',
        "';touch PWNED;'",
        "\nEND\ntouch PWNED\n",
        "END",
        "N",
        "",
        "a b",
        "*",
        "~",
        "#",
        "\\",
        "$HOME",
    ),
    *("${IFS}", "{a}", "}}", "-x", "1", "_x", "é", "x\n", ">PWNED", "x[$(touch PWNED)]", "$((1))", "a=b", "\t", "!"),
)
VALUES = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9
)


@pytest.mark.parametrize(("text", "shell", "sees"), CONTEXTS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES | st.integers(0, 99) | st.booleans())
def test_a_program_sees_the_value_or_nothing_runs(
    tmp_path: Path, text: str, shell: bool, sees: str | list[str], value: Value
) -> None:
    definition = Definition(
        parameters={"a": (value,), "b": ("b",)}, measure=Measure(text.replace("PROGRAM", PYTHON), shell)
    )
    try:
        definition.check_itself()
    except InvalidData as refused:
        assert shell, "without a shell any value is taken"
        assert "\n" not in str(refused)
        return
    values = {"a": value, "b": "b"}
    words = definition.commands["measure"].filled(values)
    environment = {"PATH": "/usr/bin:/bin", **variables(definition, values)}
    ran = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60)
    seen = ast.literal_eval(ran.stdout.decode())
    wanted = _with_value(sees, text_of(value))
    assert seen == wanted or (value == "" and seen == [word for word in wanted if word]), "an empty one is left out"
    assert not list(tmp_path.iterdir()), "nothing was run, and no file was made"


def _with_value(sees: str | list[str], value: str) -> str | list[str]:
    if isinstance(sees, str):
        return sees.replace("VALUE", value)
    return [word.replace("VALUE", value) for word in sees]


@pytest.mark.parametrize("text", [text for text, shell, _ in CONTEXTS if shell])
def test_a_shell_gets_the_values_that_no_shell_reads_as_syntax(text: str) -> None:
    definition = Definition(parameters={"a": ("x[$(touch PWNED)]",), "b": ("b",)}, measure=Measure(text, shell=True))
    if "{a}" not in text:
        definition.check_itself()
        return
    with pytest.raises(InvalidData, match="AUTOTUNE_a"):
        definition.check_itself()


@pytest.mark.parametrize(
    "text",
    [
        *("a | b", "a; b", "a && b", "a & b", "a > b", "a < b", "a $b", "a $(b)", "a `b`", 'a "$b"', 'a "`b`"', "a\nb"),
        *("a *.c", "a b?", "a [bc]", "a ~", "a ~/b", "a # b", "(a)", "a <<END\nEND", "A=b c", "cd b", "if a", "! a"),
        *("exit 0", "export A=b", ". ./a", "a \\\n b", 'a "b\\$c"', "a \"b'$c\"'d'", "a\rb", "set -e", "a 2>&1"),
    ],
)
def test_what_needs_a_shell_is_refused_with_one_remedy(text: str) -> None:
    with pytest.raises(InvalidData, match="write shell = true beside the command"):
        Command.of(text, shell=False)
    assert Command.of(text, shell=True).template == ("/bin/sh", "-c", text)


WORDS = st.lists(
    st.sampled_from(["a", " ", "  ", "'", '"', "\\", "b c", "=", "~", "#", "é", "-", "x/y", "{{", ",", "}}"])
)


@settings(max_examples=300, deadline=None)
@given(parts=WORDS)
def test_text_without_a_shell_has_the_words_that_a_shell_makes_of_it(parts: list[str]) -> None:
    text = f"printf <%s> {''.join(parts)}".replace("<%s>", "'<%s>'")
    try:
        command = Command.of(text, shell=False)
        command.check({})
    except InvalidData:
        return
    words = command.filled({})
    ran = subprocess.run(["/bin/sh", "-c", text.replace("{{", "{").replace("}}", "}")], capture_output=True, check=True)
    assert ran.stdout.decode() == subprocess.run(words, capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize(
    ("written", "shell", "says"),
    [
        (["a"], True, "text; a list is run without a shell"),
        ("a 'b", False, "open quotation"),
        ("a \\", False, "open quotation or ends with a backslash"),
        ("", False, "needs a program"),
        ("''", False, "needs a program"),
        (" ", True, "needs a program"),
        ("a \ud800", False, "not Unicode"),
        ("a" * 20_000, False, "more than 16384 characters"),
    ],
)
def test_what_is_no_command_is_refused(written: Any, shell: bool, says: str) -> None:
    with pytest.raises(InvalidData, match=says):
        Command.of(tuple(written) if isinstance(written, list) else written, shell)


def test_text_and_the_list_of_its_words_are_the_same_space() -> None:
    def digest(build: Build) -> str:
        return Definition(parameters={"a": (1,)}, build=build, measure=Measure(("x",))).digest

    assert digest(Build("cc '-D n' {a}")) == digest(Build(("cc", "-D n", "{a}")))
    assert digest(Build("cc {a}", shell=True)) != digest(Build("cc {a}"))
