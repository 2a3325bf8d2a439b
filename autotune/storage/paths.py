"""Every path of a workspace, and of nothing else, is spelled here.

WORKSPACE/
  autotune.toml                    optional settings
  jobs/
    .last-id.json                  the id of the newest job there ever was
    .lock                          held while an id is taken or a job folder appears or goes
    .daemon.lock                   held by the one daemon of this workspace
    .daemon.json                   who that daemon is and what it is doing, for `status`
    .incoming-XXXX/                a job that `submit` is still writing
    0007-resnet18/
      spec.json                    what was asked for; never changes
      control.json                 what the user wants of it: run, hold, cancel; written by the commands
      state.json                   how far it is; written by the daemon
      journal.jsonl                what happened to it, stage by stage
      model.onnx                   the snapshot that is tuned
      tasks/003.json               the tensor program of task 3
      stages/t003-r0002.json       the stage that round 2 of task 3 waits for or runs
      stages/.t003-r0002.now       the candidate that this stage builds or measures now
      artifacts/t003-r0002/        libraries between build and measure
      cost_model.ubj, .json        the trained cost model and what it was trained on
  logs/
    tuning/TARGET/HASH.jsonl       the tuning log of one task on one kind of device
    tuning/TARGET/HASH.npz         features and times of its trials: derived, may be deleted
    estimates.json                 how long stages take: derived, may be deleted
    daemon.jsonl                   when a daemon served this workspace
    tuning/TARGET/HASH.reference.npz  what the task computes from random inputs: derived, may be deleted
    quarantine.jsonl               candidates that crashed, hung, ate memory or computed something else
    daemon.log, worker-KIND.log
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_JOB_FOLDER = re.compile(r"^(\d{4,})-(.+)$")
_STAGE_FILE = re.compile(r"^t(\d{3,})-r(\d{4,})\.json$")


@dataclass(frozen=True)
class JobPaths:
    """The files of one job."""

    folder: Path

    @property
    def id(self) -> int:
        match = _JOB_FOLDER.match(self.folder.name)
        return int(match[1]) if match else 0

    @property
    def spec(self) -> Path:
        return self.folder / "spec.json"

    @property
    def control(self) -> Path:
        return self.folder / "control.json"

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    def task(self, task: int) -> Path:
        return self.tasks / f"{task:03}.json"

    @property
    def stages(self) -> Path:
        return self.folder / "stages"

    def stage(self, task: int, round: int) -> Path:
        return self.stages / f"t{task:03}-r{round:04}.json"

    def stage_files(self) -> list[Path]:
        """Stage files in order of task, then round."""
        return sorted(path for path in self.stages.glob("t*.json") if _STAGE_FILE.match(path.name))

    def stage_files_of(self, task: int) -> list[Path]:
        """Stage files of one task, in order of rounds."""
        return [path for path in self.stage_files() if path.name.startswith(f"t{task:03}-")]

    def orphaned_artifacts(self) -> list[Path]:
        """Folders of libraries whose stage is gone."""
        return [
            folder for folder in sorted(self.artifacts.glob("*")) if not (self.stages / f"{folder.name}.json").exists()
        ]

    def in_progress(self, task: int, round: int) -> Path:
        return self.stages / f".t{task:03}-r{round:04}.now"

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def artifacts_of(self, task: int, round: int) -> Path:
        return self.artifacts / f"t{task:03}-r{round:04}"

    @property
    def cost_model(self) -> Path:
        return self.folder / "cost_model.ubj"

    @property
    def cost_model_meta(self) -> Path:
        return self.folder / "cost_model.json"


@dataclass(frozen=True)
class TaskLogPaths:
    """The files of one tuning log."""

    records: Path

    @property
    def features(self) -> Path:
        return self.records.with_suffix(".npz")

    @property
    def reference(self) -> Path:
        return self.records.with_suffix(".reference.npz")


@dataclass(frozen=True)
class Workspace:
    """The folder that holds a queue and its logs."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "autotune.toml"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def queue_lock(self) -> Path:
        return self.jobs / ".lock"

    @property
    def last_id(self) -> Path:
        return self.jobs / ".last-id.json"

    @property
    def daemon_lock(self) -> Path:
        return self.jobs / ".daemon.lock"

    @property
    def daemon_info(self) -> Path:
        return self.jobs / ".daemon.json"

    def incoming(self, token: str) -> Path:
        return self.jobs / f".incoming-{token}"

    def job(self, id: int, name: str) -> JobPaths:
        return JobPaths(self.jobs / f"{id:04}-{name}")

    def job_list(self) -> list[JobPaths]:
        """The published jobs, by id."""
        if not self.jobs.is_dir():
            return []
        found = [JobPaths(path) for path in self.jobs.iterdir() if _JOB_FOLDER.match(path.name) and path.is_dir()]
        return sorted(found, key=lambda job: job.id)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def daemon_log(self) -> Path:
        return self.logs / "daemon.log"

    @property
    def uptime(self) -> Path:
        return self.logs / "daemon.jsonl"

    @property
    def estimates(self) -> Path:
        return self.logs / "estimates.json"

    @property
    def quiet_times(self) -> Path:
        return self.logs / "quiet.json"

    def worker_log(self, kind: str) -> Path:
        return self.logs / f"worker-{kind}.log"

    @property
    def quarantine(self) -> Path:
        return self.logs / "quarantine.jsonl"

    def tuning_log(self, target_key: str, task_hash: str) -> TaskLogPaths:
        return TaskLogPaths(self.logs / "tuning" / target_key / f"{task_hash}.jsonl")

    def tuning_logs(self, target_key: str) -> list[TaskLogPaths]:
        """All tuning logs of one kind of device."""
        return [TaskLogPaths(path) for path in sorted((self.logs / "tuning" / target_key).glob("*.jsonl"))]
