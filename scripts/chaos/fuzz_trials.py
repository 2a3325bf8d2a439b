"""Mutate files of trials and tuning logs, as somebody else may hand them over: they are taken in, or refused in a line.

    python scripts/chaos/fuzz_trials.py --count 3000 --seed 1   # 90 s

A mutant is a file that `trials export` wrote, or a tuning log of a workspace that is merged, with one to three changes:
a value at some place of a record, with a checksum that fits; a line that is lost, doubled or moved; a flipped byte.
Exit code 1 if a mutant raised something else than an error of one line, or made a file where no tuning log belongs.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nested

from autotune.commands import trials
from autotune.errors import AutotuneError
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import Trial
from autotune.storage.log_lines import decode_line, encode_line
from autotune.storage.paths import Workspace
from autotune.storage.trials_file import LogTrials, write
from autotune.storage.tuning_log import TuningLog

_KIND = DeviceKind({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2}, "a CPU", {"apache-tvm": "1"})
_TASK = "00000000000000aa"
_TRACE = [
    [
        ["GetSBlock", [], ["dense", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v2", "v3"]],
        ["Split", ["l1", "v2", "v3"], [True, False], ["l4", "l5"]],
    ],
    [[2, [4, 4]]],
]
_PLACE = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._-]*(?<!\.claimed)\.claimed/([0-9a-f]{16}\.(jsonl|index|jsonl\.lock)|device\.json)"
)
_DEEP: Any = None
for _ in range(150):
    _DEEP = [_DEEP]
_HOSTILE: list[Any] = [
    *(None, True, -1, 0, 2**63, 10**400, 0.5, 1e308, 5e-324, "", "../../x", "/etc/passwd", "\x1b[2J", "two\nlines"),
    *(f"{_KIND.key}.claimed", "llvm-x.claimed", "\u0660" * 16, "b\u0661"),
    *("\ud800", "a" * 5000, [], {}, [[]], ["TENSOR", "float32", [-1]], {"kind": "llvm"}, _DEEP),
]


def _trial(number: int) -> Trial:
    return Trial(f"{number:016x}", _TRACE, [["TENSOR", "float32", [1, 8]]], (10.0 + number,), None, "0001-net", 0, 5.0)


def _changed(line: bytes, generator: random.Random) -> bytes:
    record = decode_line(line) or {}
    *above, key = generator.choice(list(nested.places(record)) or [["x"]])
    nested.value_at(record, above)[key] = copy.deepcopy(generator.choice(_HOSTILE))
    return encode_line(record)


def _mutate(lines: list[bytes], generator: random.Random) -> bytes:
    mutant = list(lines)
    for _ in range(generator.randint(1, 3)):
        number = generator.randrange(len(mutant))
        match generator.randrange(8):
            case 0 if len(mutant) > 1:
                del mutant[number]
            case 1:
                mutant.insert(generator.randrange(len(mutant)), mutant[number])
            case 2 if mutant[number]:
                place = generator.randrange(len(mutant[number]))
                flipped = bytes([mutant[number][place] ^ 1 << generator.randrange(8)])
                mutant[number] = mutant[number][:place] + flipped + mutant[number][place + 1 :]
            case _:
                mutant[number] = _changed(mutant[number], generator)
    return b"".join(mutant)


def _outcome(root: Path, seeds: tuple[list[bytes], list[bytes]], generator: random.Random) -> str:
    """Take a mutant in, in a new workspace, and say what became of it."""
    here = Workspace(root / "here")
    here.root.mkdir()
    merged = generator.random() < 0.5
    content = _mutate(seeds[merged], generator)
    try:
        if merged:
            log = Workspace(root / "other").tuning_log(_KIND.key, _TASK).records
            log.parent.mkdir(parents=True)
            log.write_bytes(content)
            taken = trials.merge(here, Workspace(root / "other"))
        else:
            (root / "file.gz").write_bytes(gzip.compress(content, 1))
            taken = trials.import_file(here, root / "file.gz")
    except AutotuneError as error:
        return "refused" if len(str(error).splitlines()) == 1 and len(str(error)) < 1000 else f"unclear: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    files = [str(path.relative_to(here.logs / "tuning")) for path in here.root.rglob("*") if path.is_file()]
    if strange := [name for name in files if not _PLACE.fullmatch(name)]:
        return f"wrote {strange[0]}"
    return "taken in" if sum(one.added for one in taken) else "nothing in it"


def _seeds(root: Path) -> tuple[list[bytes], list[bytes]]:
    """The lines of a file of trials, and those of a tuning log."""
    trials = [_trial(number) for number in range(3)]
    write(
        root / "seed.gz", [LogTrials(_KIND.key, _TASK, _KIND, trials), LogTrials(_KIND.key, _TASK[::-1], _KIND, trials)]
    )
    log = TuningLog(Workspace(root / "seed").tuning_log(_KIND.key, _TASK).records)
    log.add(trials)
    exported = gzip.decompress((root / "seed.gz").read_bytes())
    return exported.splitlines(keepends=True), log.path.read_bytes().splitlines(keepends=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):  # what is lost in a power cut is not the question
        seeds = _seeds(Path(folder))
        for number in range(options.count):
            root = Path(folder, str(number))
            root.mkdir()
            outcome = _outcome(root, seeds, generator)
            outcomes[outcome.split(":")[0]] += 1
            if outcome.startswith(("raised", "unclear", "wrote")):
                print(f"mutant {number}: {outcome[:300]!r}", flush=True)
    counts = ", ".join(f"{outcome} {times}" for outcome, times in outcomes.most_common())
    print(f"{outcomes.total()} mutants: {counts}")
    return int(bool(outcomes.keys() - {"refused", "taken in", "nothing in it"}))


if __name__ == "__main__":
    sys.exit(main())
