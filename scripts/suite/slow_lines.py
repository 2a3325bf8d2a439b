"""List the lines of the package that only slow tests reach.

    python scripts/suite/slow_lines.py /tmp/coverage [--only tests/planning]

It runs the quick tests and then all others with coverage, which follows child processes and those that end by
`_exit`; a process that is killed leaves no word, so that a line may be reached and be listed all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """[run]
source = {root}/autotune
data_file = {data}
parallel = true
patch = subprocess, fork, _exit
sigterm = true
"""


def reached(marks: str, folder: Path, words: list[str]) -> dict[str, set[int]]:
    """Runs the tests with these marks; gives the lines of each file that some process came by."""
    folder.mkdir(parents=True)
    data = folder / "data"
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS.format(root=ROOT, data=data))
    workers = str((os.cpu_count() or 1) + 3)
    tests = ["-m", "pytest", "-m", marks, "-n", workers, "--dist", "worksteal", "-rN", *words]
    command = [sys.executable, "-m", "coverage", "run", "--rcfile", str(settings), *tests]
    subprocess.run(command, cwd=ROOT, check=False)
    measured = coverage.Coverage(data_file=str(data), config_file=str(settings))
    measured.combine([str(folder)])
    lines = measured.get_data()
    return {name: set(lines.lines(name) or ()) for name in lines.measured_files()}


def ranges(lines: Iterable[int]) -> str:
    """Numbers as `1-3, 7`."""
    spans = list[tuple[int, int]]()
    for line in sorted(lines):
        if spans and line == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], line)
        else:
            spans.append((line, line))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def main() -> None:
    """Prints a line for each file, and a sum."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder that does not exist, for what coverage writes")
    parser.add_argument("--only", nargs="*", default=[], help="files or folders of tests")
    options = parser.parse_args()
    quick = reached("not slow", options.folder / "quick", options.only)
    slow = reached("slow", options.folder / "slow", options.only)
    total = 0
    for name in sorted(slow):
        lines = slow[name] - quick.get(name, set())
        total += len(lines)
        if lines:
            print(f"{Path(name).relative_to(ROOT)}: {ranges(lines)}")
    print(f"{total} lines that only slow tests reach; quick tests reach {sum(map(len, quick.values()))}")


if __name__ == "__main__":
    main()
