"""A space file is read as a whole or refused in one line that says where and why; nothing in it is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.command_jobs.combinations import Combinations
from autotune.command_jobs.space_file import read_space
from autotune.errors import AutotuneError

EXAMPLES = Path(__file__).parents[2] / "examples"
MEASURE = '[measure]\ncommand = ["true"]\ntimed = true\n'
LARGE = "x" * 5000


def parameters(text: str) -> str:
    return f"[parameters]\n{text}\n{MEASURE}"


def restricted(text: str) -> str:
    return f"restrictions = [{json.dumps(text)}]\n{parameters('a = [1, 2, 3]')}"


def commands(text: str) -> str:
    return f"parameters.a = [1, 2]\n{text}\n"


# What is in the file, and a part of what is said of it. A number is the line that has to be named.
HOSTILE: list[tuple[str, str]] = [
    # no TOML, or not of a space
    ("", "'measure' is missing"),
    ("parameters = ", ":1:"),
    ("[parameters\n", ":1:"),
    ("a = 1\na = 2", ":2:"),
    ("\0", ":1:"),
    ("[measure]\ncommand = ['x']\n[measure]\n", ":3:"),
    ("unknown = 1\n" + parameters("a = [1]"), "unknown key 'unknown'"),
    (parameters("a = [1]") + "shall = true\n", "unknown key 'shall' in [measure]"),
    (parameters("a = [1]") + "[measure.more]\nx = 1\n", "unknown key 'more'"),
    ("parameters = [1]\n" + MEASURE, "'parameters' in the space must be a table"),
    ("measure = 'x'\n[parameters]\na = [1]\n", "must be a table"),
    (MEASURE, "from 1 to 256 parameters"),
    ("[parameters]\n" + MEASURE, "from 1 to 256 parameters"),
    ("[parameters]\n" + "".join(f"p{i} = [1]\n" for i in range(300)) + MEASURE, "from 1 to 256 parameters"),
    # names
    (parameters('"a b" = [1]'), "no name for a parameter"),
    (parameters('"" = [1]'), "no name for a parameter"),
    (parameters('"é" = [1]'), "no name for a parameter"),
    (parameters("lambda = [1]"), "no name for a parameter"),
    (parameters(f"{'a' * 65} = [1]"), "no name for a parameter"),
    (parameters('"a\\nb" = [1]'), "no name for a parameter"),
    # values
    (parameters("a = []"), "'a' has 0 values"),
    (parameters("a = 1"), "must be a list"),
    (parameters("a = [[1]]"), "must be a number, a text, true or false"),
    (parameters("a = [1979-05-27]"), "must be a number, a text, true or false"),
    (parameters("a = [1, 1.0]"), "has a value twice"),
    (parameters("a = [true, 1]"), "has a value twice"),
    (parameters("a = ['x', 'x']"), "has a value twice"),
    (parameters("a = [nan]"), "not finite"),
    (parameters("a = [9007199254740993]"), "larger than 2^53"),
    (parameters("a = [1" + "0" * 30 + "]"), "'a'"),
    (parameters('a = ["x\\u0000y"]'), "null character"),
    (parameters(f"a = ['{LARGE}']"), "more than 4096 characters"),
    (parameters(f"a = [{', '.join(map(str, range(10001)))}]"), "from 1 to 10000"),
    # restrictions
    (restricted("__import__('os').system('touch ran')"), "a call is not allowed"),
    (restricted("while True: pass"), "no expression"),
    (restricted("a > b"), "'b', which is no parameter"),
    (restricted("1 < 2"), "names no parameter"),
    (restricted("a > 10"), "no combination of values satisfies"),
    (restricted("a ** 9 ** 9 > 1"), "exponent"),
    (restricted("a * 4611686018427387000 > 1"), "larger than 2^62"),
    (restricted("a + " * 2000 + "a"), "more than 4096 characters"),
    (restricted("a @ a"), "MatMult is not allowed"),
    ("restrictions = 'a > 1'\n" + parameters("a = [1]"), "must be a list"),
    ("restrictions = [1]\n" + parameters("a = [1]"), "must be text"),
    ("restrictions = [" + "'a > 0'," * 300 + "]\n" + parameters("a = [1]"), "more than 256 restrictions"),
    # commands
    (commands("[measure]"), "'measure.command' is missing"),
    (commands("[measure]\ncommand = 1"), "text, or a list"),
    (commands("[measure]\ncommand = [1]"), "'command'"),
    (commands("[measure]\ncommand = []"), "needs a program"),
    (commands("[measure]\ncommand = '  '"), "needs a program"),
    (commands("[measure]\ncommand = ['x\\u0000']".replace("'", '"')), "null character"),
    (commands("[measure]\ncommand = ['x', '{b}']"), "{b} names no parameter"),
    (commands("[measure]\ncommand = ['x', '{a']"), "braces"),
    (commands("[measure]\ncommand = ['x', 'a}']"), "braces"),
    (commands("[measure]\ncommand = ['x', '{a.__class__}']"), "braces"),
    (commands("[measure]\ncommand = ['x', '{a:>99999999}']"), "braces"),
    (commands("[measure]\ncommand = 'echo ${HOME}'\nshell = true"), "{HOME} names no parameter"),
    (commands("[measure]\ncommand = ['x']\nnumber = '('"), "no regular expression"),
    (commands("[measure]\ncommand = ['x']\nnumber = 'x'"), "needs one group"),
    (commands("[measure]\ncommand = ['x']\nnumber = '(a)(b)'"), "needs one group"),
    (commands("[measure]\ncommand = ['x']\nnumber = '(a)'\ntimed = true"), "prints no number"),
    (commands("[measure]\ncommand = ['x']\nrepeats = 0"), "repeats"),
    (commands("[measure]\ncommand = ['x']\nrepeats = 1000000"), "repeats"),
    (commands("[measure]\ncommand = ['x']\ntimeout_s = 0"), "timeout_s"),
    (commands("[measure]\ncommand = ['x']\ntimed = 'yes'"), "true or false"),
    (commands(MEASURE + "[build]"), "'build.command' is missing"),
    (commands(MEASURE + "[check]"), "needs a command, an output, or both"),
    (commands(MEASURE + "[check]\noutput = 'missing.txt'"), "there is no file"),
    (commands(MEASURE + "[check]\ntolerance = -1"), "tolerance"),
    (commands(MEASURE + "[metric]\nbetter = 'faster'"), "smaller, larger"),
    (commands(MEASURE + "[metric]\nbetter = 'larger'"), "better the shorter it runs"),
    (commands(MEASURE + "[metric]\nname = ''"), "a name of letters and digits"),
    (commands(MEASURE + "[metric]\nunit = 'a b'"), "printable characters"),
    (commands(MEASURE + "[metric]\nunit = \"\\u001b[31m\""), "printable characters"),
    (commands(MEASURE + "[machine]\ncpus = 0"), "cpus"),
    (commands(MEASURE + "[machine]\ngpu = 1"), "true or false"),
    (commands(MEASURE + "[environment]\n\"A=B\" = 'x'"), "no environment variable"),
    (commands(MEASURE + '[environment]\nA = "x\\u0000"'), "no environment variable"),
    (commands(MEASURE + "[environment]\nA = '{b}'"), "{b} names no parameter"),
    (commands(MEASURE + "[environment]\nA = 1"), "must be text"),
    ("disk_mb = 0\n" + parameters("a = [1]"), "disk_mb"),
    # files
    ("files = ['missing.c']\n" + parameters("a = [1]"), "there is no file"),
    ("files = ['/etc/passwd']\n" + parameters("a = [1]"), "no path below the folder"),
    ("files = ['../secret']\n" + parameters("a = [1]"), "no path below the folder"),
    ("files = ['.hidden']\n" + parameters("a = [1]"), "no path below the folder"),
    ("files = ['']\n" + parameters("a = [1]"), "no path below the folder"),
    ("files = ['folder']\n" + parameters("a = [1]"), "folder is no file"),
    ("files = 'x'\n" + parameters("a = [1]"), "must be a list"),
    ("t1 = 'missing.json'\n" + MEASURE, "there is no file"),
    ("t1 = 'space.toml'\n" + MEASURE, "is not JSON"),
    ("t1 = 'x.json'\n" + parameters("a = [1]"), "leave out others"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), HOSTILE)
def test_a_wrong_file_gets_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "space.toml"
    (tmp_path / "folder").mkdir()
    path.write_text(text)
    with pytest.raises(AutotuneError) as refused:
        read_space(path)
    line = str(refused.value)
    assert says in line and str(path) in line and "\n" not in line and len(line) < 400
    assert refused.value.exit_code == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "space.toml"], "nothing was run"


def t1(**more: Any) -> dict[str, Any]:
    parameter = {"Name": "a", "Type": "int", "Values": "[1, 2, 4]"}
    conditions = [{"Expression": "a < 4", "Parameters": ["a"]}]
    return {"ConfigurationSpace": {"TuningParameters": [parameter], "Conditions": conditions}, **more}


def test_t1_with_commands_is_a_space(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    path.write_text(json.dumps(t1(Autotune={"measure": {"command": ["echo", "{a}"]}, "files": []})))
    definition, folder = read_space(path)
    assert definition.parameters == {"a": (1, 2, 4)} and definition.restrictions == ("a < 4",) and folder == tmp_path


def test_a_space_may_name_a_file_in_t1(tmp_path: Path) -> None:
    (tmp_path / "t1.json").write_text(json.dumps(t1()))
    (tmp_path / "space.toml").write_text('t1 = "t1.json"\n[measure]\ncommand = ["echo", "{a}"]\n')
    assert read_space(tmp_path / "space.toml")[0].parameters == {"a": (1, 2, 4)}


@pytest.mark.parametrize(("name", "count"), [("matmul", 308), ("sqlite", 96), ("vector_add", 23)])
def test_the_examples_are_spaces(name: str, count: int) -> None:
    definition, _ = read_space(EXAMPLES / name / f"{name}.toml")
    assert Combinations(definition).space.size == count


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (t1(), 'add an object "Autotune"'),
        (t1(Autotune=1), "an object"),
        (t1(Autotune={"measure": {"command": ["x"]}, "parameters": {"b": [1]}}), "has commands only"),
        (t1(Autotune={"measure": {"command": ["{b}"]}}), "names no parameter"),
        ([], "not an object in T1"),
        ({}, "'ConfigurationSpace' is missing"),
        ({"format": "autotune-space", "version": 1}, "not a valid autotune-space file"),
        ({"format": "autotune-space", "version": 99}, "version"),
    ],
)
def test_wrong_json_gets_one_line(tmp_path: Path, document: Any, says: str) -> None:
    path = tmp_path / "space.json"
    path.write_text(json.dumps(document))
    with pytest.raises(AutotuneError) as refused:
        read_space(path)
    assert says in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b"{", b"x" * (2 << 20)])
def test_what_is_no_text_of_a_space_gets_one_line(tmp_path: Path, data: bytes) -> None:
    for name in ("space.toml", "space.json"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(AutotuneError, match=name):
            read_space(tmp_path / name)


def test_another_command_or_file_makes_another_space_and_another_limit_does_not(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    (tmp_path / "a.c").write_text("int a;")

    def digest(more: str = "") -> str:
        path.write_text("files = ['a.c']\n" + commands(MEASURE + more))
        return read_space(path)[0].digest

    before = digest()
    assert digest("timeout_s = 7.0\n") == before
    assert digest("repeats = 7\n") != before
    (tmp_path / "a.c").write_text("int b;")
    assert digest() != before


def test_a_fault_at_the_end_of_a_long_file_has_its_line_at_once(tmp_path: Path) -> None:
    """Parsing the file up to each of its lines would take hours."""
    path = tmp_path / "space.toml"
    lines = [f"x{number} = [\n 1, # ]\n 2,\n]" for number in range(2000)]
    path.write_text("[parameters]\n" + "\n".join(lines) + "\n[measure]\nnumber = '''\n[\n'''\ncommand = 3\n")
    with pytest.raises(AutotuneError, match=f"space.toml:{1 + 4 * 2000 + 5}: 'command'"):
        read_space(path)


@pytest.mark.parametrize("value", ["9" * 4000, "1e999", "'\\\\ud800'", "0x" + "f" * 3000])
def test_a_value_of_t1_that_nothing_can_hold_gets_one_line(tmp_path: Path, value: str) -> None:
    document = t1(Autotune={"measure": {"command": ["echo", "{a}"]}})
    for kind in ("int", "float", "string"):
        document["ConfigurationSpace"]["TuningParameters"][0] |= {"Type": kind, "Values": f"[{value}]"}
        (tmp_path / "space.json").write_text(json.dumps(document))
        with pytest.raises(AutotuneError, match="'a") as refused:
            read_space(tmp_path / "space.json")
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_a_pipe_in_the_place_of_a_file_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "space.toml"
    path.write_text("files = ['pipe']\n" + commands(MEASURE))
    with pytest.raises(AutotuneError, match="pipe is no file"):
        read_space(path)
    for name in ("pipe.toml", "pipe.json"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(AutotuneError, match=f"{name} is no file"):
            read_space(tmp_path / name)
