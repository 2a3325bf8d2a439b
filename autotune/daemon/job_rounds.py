"""The rounds of a job that are on their way, from its stage files."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from autotune.daemon.job_journal import JobJournal
from autotune.daemon.job_trials import JobTrials
from autotune.errors import DamagedFile
from autotune.planning.view import StageId, StageView
from autotune.storage import formats
from autotune.storage.atomic import remove
from autotune.storage.formats import JobSpec, StageFile
from autotune.storage.job_files import make_folder, orphaned_artifacts, read_stage, set_aside
from autotune.storage.journal import StageFileDamaged
from autotune.storage.paths import JobPaths


@dataclass
class JobRounds:
    """The stage that each round of one job is at. `stages` are its stage files by round."""

    paths: JobPaths
    spec: JobSpec
    trials: JobTrials
    journal: JobJournal
    stages: dict[StageId, StageFile] = field(default_factory=dict)

    @property
    def views(self) -> tuple[StageView, ...]:
        """The stages as the planner sees them."""
        return tuple(StageView(id, file.kind, len(file.candidates)) for id, file in self.stages.items())

    def reload(self) -> None:
        """Read all stage files, and begin a round of each task that has none.

        Raises:
            StorageError: A stage file cannot be read, or a newer version wrote it.
        """
        self.stages.clear()
        make_folder(self.paths.stages)
        for path in self.paths.stage_files():
            self._read(path)
        self._delete_orphaned_libraries()
        self._begin_missing_rounds()

    def refresh(self, task: int) -> None:
        """Read the stage files of one task, which a worker has changed."""
        for id in [id for id in self.stages if id.task == task]:
            del self.stages[id]
        for path in self.paths.stage_files_of(task):
            with contextlib.suppress(FileNotFoundError):  # another round of the task has just ended; a report follows
                self._read(path)
        self._begin_missing_rounds()

    def skip(self, id: StageId) -> None:
        """End a round before its stage is done, and begin the next one.

        Raises:
            DiskProblem: A file could not be written or removed.
        """
        if not any(other.task == id.task and other.round > id.round for other in self.stages):
            path = self.paths.stage(id.task, id.round + 1)
            formats.write(path, StageFile(id.task, id.round + 1, "search"))
        remove(self.paths.stage(id.task, id.round))
        self.refresh(id.task)

    def _read(self, path: Path) -> None:
        try:
            file = read_stage(self.paths, path, self.spec)
        except DamagedFile as error:  # its trials are in the log, and its other candidates can be proposed again
            aside = set_aside(path)
            self._delete_orphaned_libraries()
            detail = f"{error}; kept as {aside.name}, and the search goes on from the log"
            self.journal.append(StageFileDamaged(detail))
        else:
            self.stages[StageId(self.spec.id, file.task, file.round)] = file

    def _delete_orphaned_libraries(self) -> None:
        """Delete the libraries of rounds without a stage file. Nothing measures them any more."""
        for folder in orphaned_artifacts(self.paths):
            shutil.rmtree(folder, ignore_errors=True)

    def _begin_missing_rounds(self) -> None:
        for task in set(self.spec.tunable) - {id.task for id in self.stages}:
            file = StageFile(task, self.trials.next_round(task), "search")
            path = self.paths.stage(task, file.round)
            formats.write(path, file)
            self._read(path)
