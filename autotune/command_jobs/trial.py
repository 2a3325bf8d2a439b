"""Run a space's commands for one combination: in a folder of its own, with its values in placeholders and variables.

Nobody is blamed for what is not their fault: a program that is not here raises `CommandMissing`, unless it is one that
a value names or that the build should have made.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import stat
import statistics
import string
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.command_jobs.command_template import PREFIX, Value, text_of
from autotune.command_jobs.definition import Definition, Values
from autotune.errors import CommandMissing, InvalidData, StageTimeout, WorkerError, WrongResult
from autotune.processes.keeper import CommandLimits, Finished, Keeper
from autotune.storage.trees import walk

# What a worker sets for itself; commands get a number of threads that fits their CPUs.
_OWN_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OUTPUT_BYTES = 1 << 16
_COMPARED_BYTES = 16 << 20
_NOT_FOUND = 127  # the exit status of a shell for a program that is not there
# A combination that takes so many times as long as the best one is not measured again.
_HOPELESS = 2.0


@dataclass(frozen=True)
class TrialSettings:
    """What is the same for all trials of a stage.

    Attributes:
        files: The folder with the copies of the user's files.
        cpus: The CPUs that commands run on.
        gpu: The number of the GPU that a measurement runs on; empty for none.
        build_s: The seconds that a build may take.
        measure_s: The seconds that a measurement may take, its warm-up and repeats together.
        check_s: The seconds that a check may take.
    """

    files: Path
    cpus: tuple[int, ...]
    gpu: str
    build_s: float
    measure_s: float
    check_s: float


@dataclass(frozen=True)
class CommandTrial:
    """One combination of a space, in its folder."""

    definition: Definition
    values: Values
    folder: Path
    settings: TrialSettings
    keeper: Keeper

    def build(self) -> None:
        """Make the folder with the user's files, and run the build command in it.

        Raises:
            WorkerError: The command failed.
            CommandMissing: Its program is not here.
        """
        self.folder.mkdir()
        for name in self.definition.files:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.settings.files / name, path)
            path.chmod(path.stat().st_mode | 0o200)
        if self.definition.build is not None:
            self._run("build", self.settings.build_s)
        self._check_size()

    def measure(self, best_us: float | None) -> list[float]:
        """Run the measure command, and return what it is measured by, as microseconds.

        Args:
            best_us: The best of all combinations so far; a hopeless one is measured once.

        Raises:
            WorkerError: The command failed, or printed no number.
            CommandMissing: Its program is not here.
        """
        measure = self.definition.measure
        deadline = time.monotonic() + self.settings.measure_s
        for _ in range(measure.warmup):
            self._run("measure", deadline - time.monotonic())
        times: list[float] = []
        for _ in range(measure.repeats):
            times.append(self._us_of(self._run("measure", deadline - time.monotonic())))
            if best_us is not None and statistics.median(times) > _HOPELESS * best_us:
                break
        self._check_size()
        return times

    def _us_of(self, finished: Finished) -> float:
        measure = self.definition.measure
        if measure.timed:
            return finished.seconds * 1e6
        try:
            return self.definition.metric.to_us(_number(finished.output, measure.number))
        except InvalidData as error:
            raise WorkerError(str(error)) from None

    def check(self) -> None:
        """Run the check command, and compare what it prints with what it should.

        Raises:
            WrongResult: It fails, or prints something else.
            CommandMissing: Its program is not here.
        """
        check = self.definition.check
        if check is None:
            return
        most = _COMPARED_BYTES if check.output else _OUTPUT_BYTES
        try:
            finished = self._run("check", self.settings.check_s, most)
        except CommandMissing:
            raise
        except WorkerError as error:
            raise WrongResult(str(error)) from None
        if check.output is None:
            return
        if finished.truncated:
            raise WrongResult(f"the check prints more than {_COMPARED_BYTES >> 20} MiB")
        wanted = (self.settings.files / check.output).read_text(errors="replace")
        if difference := _difference(finished.output, wanted, check.tolerance):
            raise WrongResult(f"the check prints {difference}")

    def _run(self, what: str, limit_s: float, output_bytes: int = _OUTPUT_BYTES) -> Finished:
        if limit_s <= 0:
            raise StageTimeout(f"the {what} command took too long together with its repeats")
        limits = CommandLimits(limit_s, self.definition.disk_mb << 20, output_bytes, self.settings.cpus)
        environment = _environment(self.definition, self.values, self.settings)
        command = self.definition.commands.get(what, self.definition.commands["measure"])
        finished = self.keeper.run(command.filled(self.values), str(self.folder), environment, limits)
        if finished.succeeded:
            return finished
        if finished.how == "timeout":
            raise StageTimeout(f"the {what} command {finished.fault}")
        if self.folder.is_dir() and (finished.how == "missing" or finished.status == _NOT_FOUND) and command.is_fixed:
            raise CommandMissing(
                f"the program {command.program!r} of the {what} command {finished.fault}; install it,"
                " or correct the space file and submit it again"
            )
        raise WorkerError(f"the {what} command {finished.fault}")

    def _check_size(self) -> None:
        used = 0
        try:
            for entry in walk(self.folder):
                if stat.S_ISREG(entry.status.st_mode) and not os.access(entry.name, os.R_OK, dir_fd=entry.parent):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                used += 0 if entry.is_folder else entry.status.st_size
        except OSError as error:
            raise WorkerError(f"its folder cannot be read: {error.strerror}") from None
        if used > self.definition.disk_mb << 20:
            raise WorkerError(f"its folder takes {used >> 20} MiB; disk_mb allows {self.definition.disk_mb}")


def missing_program(definition: Definition) -> tuple[str, str] | None:
    """Return a program that all combinations need and that is not here, after what it is for; None if there is none."""
    for purpose, command in definition.commands.items():
        if command.shell or not command.is_fixed:
            continue
        if shutil.which(command.program, path=definition.environment.get("PATH")) is None:
            return purpose, command.program
    return None


def variables(definition: Definition, values: Mapping[str, Value]) -> dict[str, str]:
    """Return the variables that carry values, and those of the space's own environment."""
    texts = {name: text_of(value) for name, value in values.items()}
    carried = {f"{PREFIX}{name}": text for name, text in texts.items()}
    given = {name: string.Formatter().vformat(text, (), texts) for name, text in definition.environment.items()}
    return {**carried, **given}


def _environment(definition: Definition, values: Mapping[str, Value], settings: TrialSettings) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    own = {"OMP_NUM_THREADS": str(max(1, len(settings.cpus)))}
    if settings.gpu:
        own |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": settings.gpu}
    return {**inherited, **own, **variables(definition, values)}


def _number(output: str, pattern: str | None) -> float:
    """Return the number that a command printed.

    Raises:
        WorkerError: It printed none.
    """
    if pattern is not None:
        matches = re.findall(pattern, output)
        text = matches[-1] if matches else ""
        missing = f"its output has nothing that fits {pattern!r}"
    else:
        lines = [line for line in output.splitlines() if line.strip()]
        text = lines[-1] if lines else ""
        missing = f"the last line that it prints is no number: {text.strip()[:60]!r}"
    if not text.isascii():  # Python takes the digits of all scripts
        raise WorkerError(missing)
    try:
        return float(text)
    except ValueError:
        raise WorkerError(missing) from None


def _difference(printed: str, wanted: str, tolerance: float) -> str:
    """Say where a text differs from what it should be; empty if it does not."""
    here = printed.split()
    there = wanted.split()
    for place, (word, other) in enumerate(zip(here, there, strict=False), start=1):
        if word != other and not _is_near(word, other, tolerance):
            return f"{word[:40]!r} in place of {other[:40]!r} as word {place}"
    if len(here) != len(there):
        return f"{len(here)} words in place of {len(there)}"
    return ""


def _is_near(word: str, other: str, tolerance: float) -> bool:
    try:
        return math.isclose(float(word), float(other), rel_tol=tolerance, abs_tol=0.0)
    except ValueError:
        return False
