"""Trials that travel between two workspaces while the commands that carry them are killed.

The first workspace exports what it has measured to a file. The second one imports the file. Then the first one merges
the second. Whatever was killed, the file is whole or not there, and each trial is in each workspace once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.storage import device_kind, trials_file
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import Trial
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT, TuningLog
from autotune.tvm_backend.untrusted_traces import check_trace

_KIND = DeviceKind({"kind": "llvm", "num-cores": 2}, "a CPU 6/1/1", {"apache-tvm": "0.27.0.post1"})
_TASKS = ("00000000000000aa", "00000000000000bb")
_TRIALS = 40  # of each task in each workspace; a quarter of them in both


def prepare(first: Workspace, second: Workspace) -> None:
    """Give both workspaces trials of their own."""
    for workspace, start in ((first, 0), (second, 3 * _TRIALS // 4)):
        for task in _TASKS:
            log = TuningLog(workspace.tuning_log(_KIND.key, task).records)
            log.add([_trial(number) for number in range(start, start + _TRIALS)])
        device_kind.note(workspace, _KIND)


def _trial(number: int) -> Trial:
    args = [["TENSOR", "float32", [1, 8]]]
    return Trial(f"{number:016x}", [[], []], args, (10.0 + number,), None, "0001-net", 0, 5.0)


def commands(first: Workspace, second: Workspace, file: Path) -> list[list[str]]:
    """Return the command lines that carry the trials, in order."""
    return [
        ["--workspace", str(first.root), "trials", "export", str(file)],
        ["--workspace", str(second.root), "trials", "import", str(file)],
        ["--workspace", str(first.root), "trials", "merge", str(second.root)],
    ]


def torn(file: Path) -> list[str]:
    """Return what is wrong with the file after a kill: nothing, if it is whole or not there."""
    try:
        if file.exists():
            list(trials_file.read(file, check_trace))
    except AutotuneError as error:
        return [f"after a kill {error}"]
    return []


def losses(first: Workspace, second: Workspace) -> list[str]:
    """Return a line for each trial that is not in each of the workspaces exactly once."""
    expected = Counter({f"{number:016x}": 1 for number in range(3 * _TRIALS // 4 + _TRIALS)})
    return [
        line
        for workspace in (first, second)
        for task in _TASKS
        for line in _differences(f"{workspace.root.name} {task}", expected, _hashes(workspace, task))
    ]


def _hashes(workspace: Workspace, task: str) -> Counter[str]:
    keys = (_KIND.key, device_kind.claimed(_KIND.key))
    logs = [RecordLog(workspace.tuning_log(key, task).records, *FORMAT) for key in keys]
    return Counter(str(record["hash"]) for log in logs for record in log.read())


def _differences(where: str, expected: Counter[str], shared: Counter[str]) -> list[str]:
    missing = [f"{where}: shared trial {hash} was lost" for hash in expected - shared]
    return missing + [f"{where}: shared trial {hash} is one too many" for hash in shared - expected]
