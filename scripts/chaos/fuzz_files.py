"""Mutate space files, T1 files and the state of jobs, as strangers may write them: each is read, or refused in a line.

    python scripts/chaos/fuzz_files.py space --count 10000 --seed 1
    python scripts/chaos/fuzz_files.py t1 --count 10000 --seed 1
    python scripts/chaos/fuzz_files.py state --count 10000 --seed 1

A mutant has one to three changes: a value at some place, an expression, a key, or bytes that are flipped, lost, doubled
or put in. The values of a space that is read stand in its commands as words. Exit code 1 if a mutant raised something
else than an error of one line, took over 2 s of a CPU or 200 MB more than before, or began a process.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nested

from autotune.command_jobs.combinations import Combinations
from autotune.command_jobs.space_file import read_space
from autotune.commands.job_status import snapshot
from autotune.errors import AutotuneError
from autotune.metric import Metric
from autotune.storage import formats
from autotune.storage.formats import Candidate, Control, Entry, JobSpec, JobState, LastId, StageFile, TaskSpec
from autotune.storage.job_files import read_stage
from autotune.storage.paths import Workspace

_MEMORY = "/dev/shm"  # where files take no disk
_MAX_S = 2.0
_MAX_KB = 200 * 1024
_MAX_LINE_LENGTH = 1000
_MAX_PART_LENGTH = 3000  # of an expression; one of 4096 characters is refused
_PROCESSES = ("os.fork", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen")

_SPACE: dict[str, Any] = {
    "files": ["a.c"],
    "restrictions": ["a * b <= 64", "c != 'x y' or a in [1, 2]"],
    "disk_mb": 10,
    "parameters": {"a": [1, 2, 4, 8], "b": [1, 16, 32], "c": ["", "-O2", "x y"], "d": [True, False], "e": [0.5, 1.5]},
    "build": {"command": ["cc", "{c}", "-DA={a}", "a.c"], "timeout_s": 5.0},
    "measure": {"command": "./a {a} '{b} x'", "number": "took ([0-9.]+)", "repeats": 2, "warmup": 1},
    "check": {"command": "./a {a} | head -n 1", "shell": True, "output": "a.c", "tolerance": 0.1},
    "metric": {"name": "time", "unit": "ms", "better": "smaller"},
    "machine": {"cpus": 1, "gpu": False},
    "environment": {"X": "{a}-{c}"},
}
_T1: dict[str, Any] = {
    "General": {"BenchmarkName": "x"},
    "ConfigurationSpace": {
        "TuningParameters": [
            {"Name": "a", "Type": "int", "Values": "[1, 2, 4]", "Default": 1},
            {"Name": "b", "Type": "int", "Values": "[2**i for i in range(0, 5)]"},
            {"Name": "c", "Type": "string", "Values": "['-O2', 'x y']"},
        ],
        "Conditions": [{"Expression": "a * b <= 32 and a < 4", "Parameters": ["a", "b"]}],
    },
    "Autotune": {key: _SPACE[key] for key in ("build", "measure", "check", "files")},
}
_DEEP: Any = "x"
for _ in range(150):
    _DEEP = [_DEEP]
_HOSTILE: list[Any] = [
    *(True, -1, 0, 1, 2**53 + 1, 2**63, 10**400, 10**4000, 0.5, 1e308, 5e-324, float("inf"), float("nan"), "", "a"),
    *("{a}", "{", "}}", "{a!r}", "{a:>99999999}", "{0}", "$(touch RAN)", "`touch RAN`", "'; touch RAN; '", '"', "\\"),
    *("\0", "\n", "../../x", "/etc/passwd", "/dev/zero", "a.c", "\x1b[2J", "\ud800", "é", "a" * 5000, "((a"),
    *("[[ {a} ]]", "<<END\n{a}", "(" * 900, "(.*)*" * 40, "((a+)+)+$"),
    *("[" * 4000, [], {}, [[]], _DEEP, list(range(300)), ["{a}"] * 2000),
    *([f"v{n}" for n in range(9999)], {f"p{n}": list(range(9)) for n in range(250)}, {"a": {"b": {"c": {}}}}),
]  # fmt: skip
_ATOMS = (
    "a",
    "b",
    "c",
    "zz",
    "0",
    "1",
    "-1",
    "2**63",
    "9" * 400,
    "1e308",
    "1e999",
    "'x'",
    "''",
    "True",
    "None",
    "[]",
    "i",
)
_CALLS = (
    "__import__('os').system('touch RAN')",
    "open('RAN', 'w')",
    "range(10**12)",
    "print(1)",
    "a.__class__",
    "f'{a}'",
)
_SIGNS = ("+", "-", "*", "/", "//", "%", "**", "<", "==", " and ", " or ", " in ", " not in ", " if a else ", "@", ":=")


def _expression(draw: random.Random, depth: int = 0) -> str:
    """Return a text that is an expression, or nearly one."""
    if depth > 6 or draw.random() < 0.3:
        return draw.choice(_CALLS) if draw.random() < 0.1 else draw.choice(_ATOMS)
    parts = [_expression(draw, depth + 1)[:_MAX_PART_LENGTH] for _ in range(draw.randint(1, 3))]
    match draw.randrange(7):
        case 0:
            return f"[{', '.join(parts)}]"
        case 1:
            return f"range({', '.join(parts)})"
        case 2:
            return f"[{parts[0]} for i in {parts[-1]}]"
        case 3:
            return "(" * draw.choice((1, 1, 90)) + parts[0] + ")"
        case 4:
            return draw.choice(("not ", "-", "~")) * draw.choice((1, 1, 300)) + parts[0]
        case 5:
            return draw.choice(_SIGNS).join(parts * draw.choice((1, 1, 200)))
        case _:
            return draw.choice(_SIGNS).join(parts)


def _changed(value: Any, draw: random.Random) -> None:
    """Change something in nested lists and mappings."""
    *above, key = draw.choice(list(nested.places(value)))
    parent = nested.value_at(value, above)
    match draw.randrange(6):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[draw.choice((*filter(_is_text, _HOSTILE), "shell", "t1", "format"))] = parent.pop(key)
        case 2:
            parent[key] = _expression(draw)
        case 3 if isinstance(parent[key], str):
            at = draw.randrange(len(parent[key]) + 1)
            parent[key] = parent[key][:at] + draw.choice([*filter(_is_text, _HOSTILE)]) + parent[key][at:]
        case 4:
            parent[key] = copy.deepcopy(nested.value_at(value, draw.choice(list(nested.places(value)))))
        case _:
            parent[key] = copy.deepcopy(draw.choice(_HOSTILE))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def _document(value: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(key)} = {_toml(part)}\n" for key, part in value.items()).encode()


_TOKENS = (
    b"[",
    b"]]",
    b"{",
    b'"""',
    b"'''",
    b"\n",
    b"=",
    b"\0",
    b"\xff",
    b"0x" + b"f" * 9000,
    b"9" * 5000,
    b"#",
    b"\r",
)


def _scrambled(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    match draw.randrange(5):
        case 0 if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[draw.randrange(len(data) + 1) :]
        case 3:
            return data[:at] + draw.choice(_TOKENS) * draw.choice((1, 1, 90)) + data[at:]
        case _:
            return data[:at] + data[at : at + 40] * draw.choice((2, 2000)) + data[at:]


def _mutant(seed: dict[str, Any], written: Callable[[dict[str, Any]], bytes], draw: random.Random) -> bytes:
    value = copy.deepcopy(seed)
    for _ in range(draw.randint(0, 3)):
        if value:
            _changed(value, draw)
    data = written(value)
    return _scrambled(data, draw) if draw.random() < 0.3 else data


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@dataclass(frozen=True)
class _Spaces:
    """Space files, in TOML or in T1."""

    folder: Path
    t1: bool

    def put(self, draw: random.Random) -> Path:
        path = self.folder / ("space.json" if self.t1 else "space.toml")
        path.write_bytes(_mutant(_T1, _json, draw) if self.t1 else _mutant(_SPACE, _document, draw))
        return path

    def restore(self, path: Path) -> None:
        path.unlink()

    def read(self, path: Path) -> None:
        definition, _ = read_space(path)
        combinations = Combinations(definition)
        values = combinations.values(next(iter(combinations.space)))
        for command in definition.commands.values():
            words = command.filled(values)
            assert 0 < len(words) <= len(command.template), "a value has become several words"


@dataclass(frozen=True)
class _States:
    """The files of a job that is in a queue."""

    workspace: Workspace
    seeds: dict[Path, dict[str, Any]]

    @classmethod
    def make(cls, folder: Path) -> _States:
        workspace = Workspace(folder)
        paths = workspace.job(1, "net")
        paths.stages.mkdir(parents=True)
        task = TaskSpec("dense", f"{0xAA:016x}", 2, "8x8", 0.1, True)
        spec = JobSpec(
            id=1, name="net", model="net.onnx", target={"kind": "llvm", "num-cores": 2}, target_key="llvm-any-1",
            inputs=(), tasks=(task,), trials=8, entries=(Entry("main", (), (2,)),), metric=Metric(), trials_per_round=4,
            strategy="lfbo", sampler="fps", known_at_submit=0, submitted_at=5.0,
        )  # fmt: skip
        candidates = (Candidate("ab" * 8, [[["GetSBlock", [], ["dense", "main"], ["b0"]]], []], []),)
        formats.write(paths.spec, spec)
        formats.write(paths.control, Control())
        formats.write(paths.state, JobState())
        formats.write(paths.stage(0, 0), StageFile(0, 0, "build", candidates))
        formats.write(workspace.last_id, LastId(1))
        files = (paths.spec, paths.control, paths.state, paths.stage(0, 0), workspace.last_id)
        return cls(workspace, {path: json.loads(path.read_bytes()) for path in files})

    def put(self, draw: random.Random) -> Path:
        path = draw.choice(list(self.seeds))
        path.write_bytes(_mutant(self.seeds[path], _json, draw))
        return path

    def restore(self, path: Path) -> None:
        path.write_bytes(_json(self.seeds[path]))

    def read(self, path: Path) -> None:
        (paths,) = self.workspace.job_list()
        (job,) = snapshot(self.workspace)
        assert len(job.reason.splitlines()) <= 1, "the reason is one line"
        if path.parent == paths.stages:
            read_stage(paths, path, formats.read(JobSpec, paths.spec))
        if path == self.workspace.last_id:
            formats.read(LastId, path)
        elif path.parent == paths.folder:
            formats.read({"spec": JobSpec, "state": JobState, "control": Control}[path.stem], path)


class _Ran(BaseException):
    """A mutant began a process."""


def _outcome(files: _Spaces | _States, draw: random.Random) -> str:
    path = files.put(draw)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    try:
        files.read(path)
        outcome = "read"
    except AutotuneError as error:
        outcome = "refused"
        if len(str(error).splitlines()) != 1 or len(str(error)) > _MAX_LINE_LENGTH:
            outcome = f"unclear: {error}"
    except _Ran as ran:
        outcome = f"ran: {ran}"
    except Exception as error:
        outcome = f"raised: {type(error).__name__}: {error}"
    seconds = time.process_time() - began
    files.restore(path)
    more_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    if seconds > _MAX_S:
        return f"slow: {seconds:.1f} s"
    return f"large: {more_kb >> 10} MB" if more_kb > _MAX_KB else outcome


def _watch() -> None:
    def hook(event: str, _: object) -> None:
        if event in _PROCESSES:
            raise _Ran(event)

    sys.addaudithook(hook)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=("space", "t1", "state"))
    parser.add_argument("--count", type=int, default=10_000, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one, to see one again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no more are made")
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    until = time.monotonic() + options.seconds
    parent = _MEMORY if Path(_MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent) as folder, patch("os.fsync"):
        Path(folder, "a.c").write_text("int main;")
        files = _States.make(Path(folder)) if options.kind == "state" else _Spaces(Path(folder), options.kind == "t1")
        _watch()
        for number in range(options.first, options.first + options.count):
            if time.monotonic() > until:
                break
            outcome = _outcome(files, random.Random(f"{options.seed}/{options.kind}/{number}"))
            outcomes[outcome.split(":")[0]] += 1
            if outcome not in ("read", "refused"):
                print(f"mutant {number}: {outcome[:300]!r}", flush=True)
    counts = ", ".join(f"{outcome} {times}" for outcome, times in outcomes.most_common())
    print(f"{outcomes.total()} mutants of {options.kind}, seed {options.seed}: {counts}")
    return int(bool(outcomes.keys() - {"read", "refused"}))


if __name__ == "__main__":
    sys.exit(main())
