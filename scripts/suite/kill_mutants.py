"""Say which mutants the tests of a worktree kill.

    git worktree add /tmp/mutants && cd /tmp/mutants && scripts/setup.sh '.[dev,docs]'
    .venv/bin/python scripts/suite/kill_mutants.py reach --results /tmp/reach.jsonl    # one run of the suite
    .venv/bin/python scripts/suite/kill_mutants.py kill --reach /tmp/reach.jsonl --results /tmp/kills.jsonl

`reach` puts a probe before each statement that a patch changes, runs the suite, and notes which tests come by:
children, forks and processes that end by `_exit` too, for a probe writes at once. `kill` applies one patch after the
other and runs the tests that reach it, the quickest first, until one fails. Both change the package in place and put
it back: use a worktree of its own. What was done is kept, so that either can go on after an interruption.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).parent / "mutants"
PROBE = ROOT / "autotune" / "_probe.py"
TEST = "AUTOTUNE_MUTANT_TEST"
OF_A_FILE = 4  # the quickest tests of a file that reach a mutant stand for the others of the file
BUDGET_S = 90.0  # what the tests of one mutant may take when nothing is mutated
PROBE_SOURCE = '''"""Notes which test comes by a mutated statement; made by scripts/suite/kill_mutants.py."""
import os
_seen = set()
def hit(number):
    hit = (number, os.environ.get({test!r}, ""), os.getpid())
    if hit not in _seen:
        _seen.add(hit)
        try:
            log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(log, f"{{hit[0]}}\\t{{hit[1]}}\\n".encode())
            os.close(log)
        except OSError:
            pass
'''


@dataclass(frozen=True)
class Patch:
    """One mutant: its number, its file and the first line that it changes."""

    number: str
    path: Path
    line: int


def patches() -> list[Patch]:
    """All mutants that still have their place, which may have moved since they were drawn. Prints which have none."""
    restore()
    read = []
    for file in sorted(PATCHES.glob("*.patch")):
        if apply(file):
            read.append(Patch(file.stem, *_first_change()))
            restore()
        else:
            print(f"mutant {file.stem} has no place: its lines are gone, or occur twice", file=sys.stderr)
    return read


def apply(patch: Path) -> bool:
    """Applies a patch where it was drawn or, where code has moved, where its lines are; whether it has a place."""
    return git("apply", str(patch)) or git("apply", "-C1", "--recount", str(patch)) or _apply_elsewhere(patch)


def _apply_elsewhere(patch: Path) -> bool:
    modules = {path: path.read_text() for path in (ROOT / "autotune").rglob("*.py")}
    found = place(patch.read_text(), modules)
    if found is not None:
        found[0].write_text(found[1])
    return found is not None


def place(patch: str, modules: Mapping[Path, str]) -> tuple[Path, str] | None:
    """The only module that has the lines of a patch, with the patch applied.

    As few lines around the change are left out as must be. None if no module has the changed lines, or if several have.
    """
    lines = [line for line in patch.splitlines(keepends=True) if not line.startswith(("---", "+++", "@@"))]
    changed = [number for number, line in enumerate(lines) if line[0] in "+-"]
    for around in (3, 2, 1, 0):
        part = lines[max(0, changed[0] - around) : changed[-1] + 1 + around]
        old = "\n" + "".join(line[1:] for line in part if line[0] != "+")
        new = "\n" + "".join(line[1:] for line in part if line[0] != "-")
        having = [path for path, text in modules.items() if old in text]
        if having:
            path = having[0]
            unique = len(having) == 1 and modules[path].count(old) == 1
            return (path, modules[path].replace(old, new)) if unique else None
    return None


def _first_change() -> tuple[Path, int]:
    command = ["git", "diff", "-U0", "--no-prefix", "--", "autotune"]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    path = next(line for line in diff if line.startswith("--- ")).removeprefix("--- ")
    hunk = next(line for line in diff if line.startswith("@@"))
    return Path(path), int(re.findall(r"\d+", hunk)[0])


def git(*words: str) -> bool:
    """Runs git in the worktree; whether it succeeded."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False).returncode == 0


def restore() -> None:
    """Gives the package its own text back."""
    git("checkout", "--quiet", "--", "autotune")
    PROBE.unlink(missing_ok=True)


def _statements(tree: ast.AST, line: int) -> list[ast.stmt]:
    around = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return sorted(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)))


def _first_lines(function: ast.FunctionDef) -> int:
    body = function.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
    return body[1 if documented else 0].lineno


def probe_lines(source: str, line: int) -> list[int]:
    """Before which lines a probe stands: the statement of the change, or, if it runs on import, all functions."""
    tree = ast.parse(source)
    around = _statements(tree, line)
    inside = [node for node in around if isinstance(node, ast.FunctionDef)]
    if inside and around[-1] is not inside[-1]:
        branches = {branch.lineno for node in ast.walk(tree) for branch in _branches(node)}
        return [next(node.lineno for node in reversed(around) if node.lineno not in branches)]
    return [_first_lines(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _branches(node: ast.AST) -> list[ast.stmt]:
    """An `elif`, which no statement can stand before."""
    if isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        return [node.orelse[0]] if node.orelse[0].col_offset == node.col_offset else []
    return []


def put_probes(log: Path) -> None:
    """Writes a probe before each statement that is to be mutated."""
    placed = patches()  # which puts the package's own text back
    PROBE.write_text(PROBE_SOURCE.format(test=TEST, log=str(log)))
    of_files = defaultdict[Path, list[tuple[int, str]]](list)
    for patch in placed:
        for line in probe_lines((ROOT / patch.path).read_text(), patch.line):
            of_files[patch.path].append((line, patch.number))
    for path, probes in of_files.items():
        lines = (ROOT / path).read_text().splitlines(keepends=True)
        for line, number in sorted(probes, reverse=True):
            text = lines[line - 1]
            indent = text[: len(text) - len(text.lstrip())]
            lines.insert(line - 1, f'{indent}__import__("autotune._probe", fromlist=["hit"]).hit("{number}")\n')
        (ROOT / path).write_text("".join(lines))


def command_of(*words: str) -> list[str]:
    """A run of the tests with this file as a plugin, which notes their seconds and tells children which test it is."""
    return [sys.executable, "-m", "pytest", "-p", "kill_mutants", "-q", "-rN", *words]


def environment(**others: str) -> dict[str, str]:
    """What a run of the tests is given."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).parent)} | others


def pytest_runtest_protocol(item: Any) -> None:
    """Tells children which test they belong to."""
    os.environ[TEST] = item.nodeid


def pytest_runtest_logreport(report: Any) -> None:
    """Notes the seconds of a test."""
    log = os.environ.get("AUTOTUNE_MUTANT_SECONDS")
    if log and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(log).open("a") as file:
            file.write(json.dumps([report.nodeid, report.duration, report.outcome]) + "\n")


def reach(results: Path, words: list[str]) -> None:
    """Runs the suite with probes; writes a record for each mutant: its tests, with their seconds."""
    log, seconds_log = results.with_suffix(".hits"), results.with_suffix(".seconds")
    restore()
    put_probes(log)
    try:
        command = command_of("-n", str((os.cpu_count() or 1) + 3), "--dist", "worksteal", *words)
        subprocess.run(command, cwd=ROOT, env=environment(AUTOTUNE_MUTANT_SECONDS=str(seconds_log)), check=False)
    finally:
        restore()
    seconds = defaultdict[str, float](float)
    failed = set()
    for name, duration, outcome in map(json.loads, seconds_log.read_text().splitlines()):
        seconds[name] += duration
        if outcome == "failed":
            failed.add(name)
    tests = defaultdict[str, set[str]](set)
    for line in log.read_text().splitlines():
        number, test = line.split("\t")
        if test in seconds and test not in failed:
            tests[number].add(test)
    with results.open("w") as file:
        for patch in patches():
            of_patch = {test: round(seconds[test], 3) for test in sorted(tests[patch.number])}
            file.write(json.dumps({"number": patch.number, "tests": of_patch}) + "\n")


def chosen(tests: dict[str, float], path: Path) -> list[str]:
    """The tests to run: those of the file that mirrors the module first, then the quickest, within a budget."""
    mirror = f"test_{path.stem}.py"
    ordered = sorted(tests, key=lambda test: (mirror not in test, tests[test]))
    of_files = defaultdict[str, int](int)
    names = list[str]()
    total = 0.0
    for test in ordered:
        file = test.split("::")[0]
        of_files[file] += 1
        if (of_files[file] <= OF_A_FILE or mirror in test) and total + tests[test] <= BUDGET_S:
            names.append(test)
            total += tests[test]
    return names or ordered[:1]


def kill(reached: dict[str, dict[str, float]], patch: Patch) -> dict[str, object]:
    """Applies a mutant, runs its tests until one fails, and takes it back."""
    restore()
    if not apply(PATCHES / f"{patch.number}.patch"):
        return {"number": patch.number, "result": "does not apply"}
    tests = reached.get(patch.number, {})
    names = chosen(tests, patch.path)
    started = time.monotonic()
    result, killer = "unreached", ""
    for part in (names[:6], names[6:]):
        if not part or result == "killed":
            continue
        limit = 90 + 6 * sum(tests[test] for test in part)
        result, killer = run_tests(part, limit)
    restore()
    seconds = round(time.monotonic() - started, 1)
    return {"number": patch.number, "result": result, "by": killer, "tests": len(names), "of": len(tests), "s": seconds}


def run_tests(names: list[str], limit: float) -> tuple[str, str]:
    """Whether one of these tests fails, and which. What does not end within the limit, in seconds, fails."""
    command = command_of("-x", "-p", "no:cacheprovider", "-m", "", *names)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return "killed", "by its time"
    if process.returncode == 0:
        return "survived", ""
    failure = re.search(r"^_+ (.*?) _+$", output, re.M)
    return "killed", failure.group(1) if failure else output.strip().splitlines()[-1][:200]


def main() -> None:
    """`reach` or `kill`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["reach", "kill"])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--reach", type=Path)
    parser.add_argument("--only", nargs="*", help="numbers of patches")
    parser.add_argument("words", nargs="*", help="to pytest, with reach")
    options = parser.parse_args()
    if options.step == "reach":
        reach(options.results, options.words)
        return
    reached = {line["number"]: line["tests"] for line in map(json.loads, options.reach.read_text().splitlines())}
    done = set()
    if options.results.exists():
        done = {json.loads(line)["number"] for line in options.results.read_text().splitlines()}
    for patch in sorted(patches(), key=lambda patch: int(patch.number) * 73 % 199):  # rooms by turns
        if patch.number not in done and (not options.only or patch.number in options.only):
            outcome = kill(reached, patch)
            with options.results.open("a") as file:
                file.write(json.dumps(outcome) + "\n")
            print(outcome, flush=True)


if __name__ == "__main__":
    main()
