"""Hand over the result of a job of commands: the best values, scripts that build and run with them, and all trials.

The output folder gets `best.json`, `best.toml`, a script for each command of the space, copies of the user's files, and
`NAME_T4.json`.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.command_jobs import t4
from autotune.command_jobs.combinations import Combinations
from autotune.command_jobs.command_template import Command
from autotune.command_jobs.definition import Definition, Values
from autotune.command_jobs.space_copy import read_snapshot
from autotune.command_jobs.trial import variables
from autotune.errors import BadInput, BadState, StorageError, disk_problem
from autotune.storage.atomic import make_folders, publish_bytes, publish_json, read_json
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

_BEST = ("autotune-best", 1)


def export(workspace: Workspace, paths: JobPaths, spec: JobSpec, output: Path) -> dict[str, Any]:
    """Write the best combination of a job so far to a folder, which is made if it does not exist.

    Returns:
        What is in `best.json`.

    Raises:
        BadState: No combination has a result yet.
        BadInput: The folder has files of the same names that autotune did not make.
        DiskProblem: A file could not be written.
    """
    definition = read_snapshot(paths)
    log = TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[0].hash).records)
    combinations = Combinations(definition)
    trials = [trial for trial in log.trials() if _values(combinations, trial) is not None]
    ours = {trial.hash for trial in trials}
    fastest = next((trial for trial in log.fastest(len(log.entries())) if trial.hash in ours), None)
    values = None if fastest is None else _values(combinations, fastest)
    if fastest is None or values is None:
        raise BadState(f"{paths.folder.name} has no result yet: wait for its first trials")
    best = _described(spec, fastest, values, trials)
    names = [*(f"{name}.sh" for name in definition.commands), "best.toml", f"{spec.name}_T4.json", *definition.files]
    _check_output(output, names)
    for name in definition.files:
        _copy(paths.files / name, output / name)
    for name, command in definition.commands.items():
        _write(output / f"{name}.sh", _script(spec, definition, command, values), executable=True)
    _write(output / "best.toml", _toml(spec, best))
    _write(output / f"{spec.name}_T4.json", json.dumps(t4.results(trials, spec.metric), indent=1) + "\n")
    publish_json(output / "best.json", *_BEST, best)
    return {**best, "files": sorted([*names, "best.json"])}


def summary(best: Mapping[str, Any], output: str) -> str:
    """Return what `export` prints when it is done."""
    metric = best["metric"]
    values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in best["values"].items())
    failed = f", {best['failed']} of them failed" if best["failed"] else ""
    return (
        f"{metric['name']}: {best['value']:.6g} {metric['unit']}, the best of {best['trials']} trials{failed}\n"
        f"{values}\nwrote {output}: {', '.join(best['files'])}"
    )


def _values(combinations: Combinations, trial: Trial) -> Values | None:
    """Return the values of a trial as the space has them; None where they are not of it, as an imported log may say."""
    configuration = combinations.configuration(trial.trace.get("values")) if isinstance(trial.trace, dict) else None
    return None if configuration is None else combinations.values(configuration)


def _described(spec: JobSpec, best: Trial, values: Values, trials: list[Trial]) -> dict[str, Any]:
    assert best.median_us is not None, "the fastest trial has a time"
    return {
        "job": spec.name,
        "values": values,
        "metric": vars(spec.metric),
        "value": spec.metric.from_us(best.median_us),
        "measured": [spec.metric.from_us(us) for us in best.times_us],
        "trials": len(trials),
        "failed": sum(trial.failure is not None for trial in trials),
        "machine": spec.machine,
    }


def _check_output(output: Path, names: list[str]) -> None:
    try:
        if output.exists() and not output.is_dir():
            raise BadInput(f"--output {output} is a file; give a folder")
        make_folders(output)
        there = [name for name in names if (output / name).exists()]
        if there and not _is_ours(output / "best.json"):
            raise BadInput(f"--output {output} has a {there[0]} that autotune did not make; give a new folder")
    except OSError as error:
        raise disk_problem("write to", output, error) from error


def _is_ours(path: Path) -> bool:
    try:
        return bool(read_json(path, *_BEST))
    except (FileNotFoundError, StorageError):
        return False


def _copy(source: Path, copy: Path) -> None:
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        shutil.copy(source, copy)
        copy.chmod(copy.stat().st_mode | 0o200)
    except OSError as error:
        raise disk_problem("write", copy, error) from error


def _write(path: Path, text: str, *, executable: bool = False) -> None:
    publish_bytes(path, text.encode())
    path.chmod(0o755 if executable else 0o644)


def _script(spec: JobSpec, definition: Definition, command: Command, values: Values) -> str:
    exports = [f"export {name}={shlex.quote(text)}" for name, text in variables(definition, values).items()]
    lines = [
        "#!/bin/sh",
        f"# The best values of the job {spec.name}, by autotune. It runs in the folder that it is in.",
        'cd "$(dirname "$0")" || exit',
        *exports,
        f"exec {shlex.join(command.filled(values))}",
    ]
    return "\n".join(lines) + "\n"


def _toml(spec: JobSpec, best: Mapping[str, Any]) -> str:
    """Return the values as TOML, whose numbers, booleans and text are written as in JSON, but for one character."""
    head = f"# {spec.metric.name}: {best['value']:.6g} {spec.metric.unit}, the best of {best['trials']} trials\n"
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in best["values"].items()}
    return head + "".join(f"{name} = {text}\n".replace("\x7f", "\\u007f") for name, text in texts.items())
