"""The paths of all files in a workspace. No other module spells one.

WORKSPACE/
  autotune.toml                    optional settings
  jobs/
    .last-id.json                  the highest id that a job has had
    .lock                          held while the queue is changed
    .daemon.lock, .daemon.json     held by the daemon of this workspace, and what it is doing, for `status`
    .incoming-XXXX/                a job that `submit` has not finished writing
    0007-resnet18/
      spec.json                    what was asked for; never changes
      control.json                 what the user wants: run, hold or cancel; written by the commands
      state.json                   its progress; written by the daemon
      journal.jsonl                its events, stage by stage
      model.onnx, .pt2, .tflite, .gguf    the copy of the model that is tuned
      space.json, files/           in place of a model: parameters, commands and files of a job of commands
      plan.toml                    the copy of the plan that it was submitted with
      exported.json                what the last export measured; may be deleted
      last-export.json             where it went, and what it was made from; may be deleted
      confirmed.json               how long the whole model took
      ready.so, ready.json         the library of its best schedules, for `export` to take; may be deleted
      rewritten.onnx               the graph that was imported instead, where the importer does not take the model's
      rewritten-1.onnx             the same for the second set of shapes, and so on
      model.weights, rewritten...  the weights of either, if they are too many for one ONNX file or shared
      on_end.log                   what the command of `submit --on-end` printed
      tasks/003.json               the tensor program of task 3
      stages/t003-r0002.json       the stage of round 2 of task 3 that waits or runs
      stages/.t003-r0002.now       the candidate that this stage is building or measuring
      artifacts/t003-r0002/        libraries that wait to be timed; of commands a folder for each trial
      cost_model.ubj, .json        the trained cost model and what it was trained on
  sweeps/SWEEP/JOB/                the exported model of a point of a sweep
  logs/
    tuning/TARGET/HASH.jsonl       the tuning log of one task on one kind of device
    tuning/TARGET/device.json      the kind of device that TARGET stands for
    tuning/TARGET/HASH.index, .npz, .reference.npz, .claims    derived, may be deleted
    tuning/TARGET.claimed/         the same of what other workspaces claim to have measured on it
    estimates.json                 how long stages take; derived, may be deleted
    objects/                       compiled kernels that are kept; derived, may be deleted
    daemon.jsonl                   when a daemon served this workspace
    quarantine.jsonl               candidates that crashed, hung, ran out of memory or computed wrong results
    daemon.log, worker-KIND.log    text for people; with .1 at the end what was there before
~/.local/state/autotune/seal.key   this user's key; see `seals.py`
~/.local/share/autotune/libraries/ where this user's registered exports are; see `export_registry.py`
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

FILES = "files"  # beside a space, the folder with the copies of the files that its commands get
_JOB_FOLDER = re.compile(r"^(\d{4,})-(.+)$")
_STAGE_FILE = re.compile(r"^t(\d{3,})-r(\d{4,})\.json$")


def seal_keys() -> tuple[Path, Path]:
    """Return where this user's key may be: in the home folder, and where that cannot be written to."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home, "autotune", "seal.key"), Path(tempfile.gettempdir(), f"autotune-{os.geteuid()}-seal.key")


def registry_folder() -> Path:
    """Return the folder in which this user's registered exports are listed."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home, "autotune", "libraries")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)  # what a link leads to is not the workspace's to write or delete
    except OSError:
        return False


class _Named:
    """A path in a class of paths: what has a name in another one of its paths."""

    def __init__(self, parent: str, name: str) -> None:
        self.parent = parent
        self.name = name

    def __get__(self, paths: object, _: type) -> Path:
        parent: Path = getattr(paths, self.parent)
        return parent / self.name


@dataclass(frozen=True)
class JobPaths:
    """The paths of one job's files."""

    folder: Path
    spec = _Named("folder", "spec.json")
    control = _Named("folder", "control.json")
    state = _Named("folder", "state.json")
    journal = _Named("folder", "journal.jsonl")
    model = _Named("folder", "model.onnx")
    program = _Named("folder", "model.pt2")
    plan = _Named("folder", "plan.toml")
    flatbuffer = _Named("folder", "model.tflite")
    gguf = _Named("folder", "model.gguf")
    space = _Named("folder", "space.json")
    files = _Named("folder", FILES)
    exported = _Named("folder", "exported.json")
    last_export = _Named("folder", "last-export.json")
    confirmed = _Named("folder", "confirmed.json")
    ready_library = _Named("folder", "ready.so")
    ready_note = _Named("folder", "ready.json")
    on_end_log = _Named("folder", "on_end.log")
    tasks = _Named("folder", "tasks")
    stages = _Named("folder", "stages")
    artifacts = _Named("folder", "artifacts")
    cost_model = _Named("folder", "cost_model.ubj")
    cost_model_meta = _Named("folder", "cost_model.json")

    @property
    def id(self) -> int:
        match = _JOB_FOLDER.match(self.folder.name)
        return int(match[1]) if match else 0

    @property
    def name(self) -> str:
        return self.folder.name.split("-", 1)[1]

    def use(self, user: str) -> Path:
        """The lock of a process that needs the job's files; `*` for a pattern of all."""
        return self.folder / f".use-{user}.lock"

    @property
    def snapshot(self) -> Path:
        """Return the copy of what was submitted, of whichever kind it is."""
        others = (self.program, self.flatbuffer, self.gguf, self.space)
        return next((path for path in others if path.exists()), self.model)

    def rewritten_model(self, entry: int = 0) -> Path:
        """Return the graph that is imported for a set of shapes, counted from 0."""
        return self.folder / (f"rewritten-{entry}.onnx" if entry else "rewritten.onnx")

    @property
    def rewritten_weights(self) -> Path:
        return self.weights_of(self.rewritten_model())

    @staticmethod
    def weights_of(model: Path) -> Path:
        """Return the file with the weights of a snapshot that is too large for one file."""
        return model.with_suffix(".weights")

    def task(self, task: int) -> Path:
        return self.tasks / f"{task:03}.json"

    def stage(self, task: int, round: int) -> Path:
        return self.stages / f"t{task:03}-r{round:04}.json"

    def stage_files(self) -> list[Path]:
        """Return the stage files by task, then round.

        Raises:
            OSError: The folder is there and cannot be read: that is not to say that it is empty.
        """
        try:
            names = os.listdir(self.stages)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [self.stages / name for name in sorted(names) if _STAGE_FILE.match(name)]

    def stage_files_of(self, task: int) -> list[Path]:
        """Return the stage files of one task by round."""
        return [path for path in self.stage_files() if path.name.startswith(f"t{task:03}-")]

    def in_progress(self, task: int, round: int) -> Path:
        return self.stages / f".t{task:03}-r{round:04}.now"

    def artifacts_of(self, task: int, round: int) -> Path:
        return self.artifacts / f"t{task:03}-r{round:04}"


@dataclass(frozen=True)
class TaskLogPaths:
    """The paths of one tuning log and the files derived from it."""

    records: Path

    @property
    def index(self) -> Path:
        return self.records.with_suffix(".index")

    @property
    def features(self) -> Path:
        return self.records.with_suffix(".npz")

    @property
    def reference(self) -> Path:
        return self.records.with_suffix(".reference.npz")

    @property
    def claims(self) -> Path:
        return self.records.with_suffix(".claims")


@dataclass(frozen=True)
class Workspace:
    """The folder of a queue and its logs, with the paths in it."""

    root: Path
    config = _Named("root", "autotune.toml")
    jobs = _Named("root", "jobs")
    queue_lock = _Named("jobs", ".lock")
    last_id = _Named("jobs", ".last-id.json")
    daemon_lock = _Named("jobs", ".daemon.lock")
    daemon_info = _Named("jobs", ".daemon.json")
    logs = _Named("root", "logs")
    daemon_log = _Named("logs", "daemon.log")
    uptime = _Named("logs", "daemon.jsonl")
    estimates = _Named("logs", "estimates.json")
    objects = _Named("logs", "objects")
    quiet_times = _Named("logs", "quiet.json")
    quarantine = _Named("logs", "quarantine.jsonl")
    tuning = _Named("logs", "tuning")

    def incoming(self, token: str) -> Path:
        return self.jobs / f".incoming-{token}"

    def job(self, id: int, name: str) -> JobPaths:
        return JobPaths(self.jobs / f"{id:04}-{name}")

    def job_list(self) -> list[JobPaths]:
        """Return the submitted jobs by id. Jobs that `submit` is still writing are left out.

        Raises:
            OSError: The folder `jobs/` cannot be read.
        """
        try:
            with os.scandir(self.jobs) as entries:  # which tells folders from files without a look at each
                names = [(match, entry) for entry in entries if (match := _JOB_FOLDER.match(entry.name))]
                jobs = [(int(match[1]), entry.name) for match, entry in names if _is_folder(entry)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [JobPaths(self.jobs / name) for _, name in sorted(jobs)]

    def sweep_exports(self, sweep: str) -> Path:
        return self.root / "sweeps" / sweep

    def worker_log(self, kind: str) -> Path:
        return self.logs / f"worker-{kind}.log"

    def tuning_log(self, target_key: str, task_hash: str) -> TaskLogPaths:
        return TaskLogPaths(self.tuning / target_key / f"{task_hash}.jsonl")

    def device_kind(self, target_key: str) -> Path:
        return self.tuning / target_key / "device.json"

    def tuning_folders(self) -> list[Path]:
        """Return the folders of tuning logs: one for each kind of device."""
        return sorted(self.tuning.glob("*"))

    def tuning_logs(self, target_key: str) -> list[TaskLogPaths]:
        """Return all tuning logs of one kind of device."""
        return [TaskLogPaths(path) for path in sorted((self.tuning / target_key).glob("*.jsonl"))]
