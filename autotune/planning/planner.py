"""The planner: from a picture of everything to the stages to start. A pure, deterministic function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autotune.planning.budget import next_batch
from autotune.planning.gain import expected_gain, open_tasks
from autotune.planning.view import JobView, Machine, Plan, RunningView, StageView, Start, TaskView

# Finish what was begun before beginning more: a round in flight holds a task's budget and its news.
_ORDER = {"train": 0, "measure": 1, "build": 2, "search": 3}
# Rounds in flight for each CPU. More would hide less idling and search on older knowledge.
_ROUNDS_PER_CPU = 3
# Measurements on the CPU need all of it, so a few are gathered before the other stages are drained for them.
_GATHER_PER_CPU = 2


@dataclass
class _Board:
    """The free resources while a plan is made."""

    jobs: Sequence[JobView]
    machine: Machine
    running: list[RunningView]
    starts: list[Start] = field(default_factory=list)
    waits: dict[int, str] = field(default_factory=dict)

    @property
    def free(self) -> tuple[int, ...]:
        taken = {cpu for item in self.running for cpu in item.cpus}
        return tuple(cpu for cpu in self.machine.cpus if cpu not in taken)

    def begin(self, stage: StageView, cpus: tuple[int, ...], count: int = 0) -> None:
        self.starts.append(Start(stage, cpus, count))
        self.running.append(RunningView(stage.id, stage.kind, cpus, count))

    def wait(self, job: int, reason: str) -> None:
        if not any(item.id.job == job for item in self.running):
            self.waits[job] = reason


def plan(jobs: Sequence[JobView], running: Iterable[RunningView], machine: Machine) -> Plan:
    """Choose the stages to start now.

    Args:
        jobs: the active jobs, in the order of their ids.
        running: what workers have now; its CPUs are taken.
    """
    ordered = sorted(jobs, key=lambda job: (-job.priority, job.id))
    board = _Board(ordered, machine, list(running))
    _measure(board)
    if not _draining(board):
        _continue_rounds(board)
        _begin_rounds(board)
    _explain(board)
    return Plan(tuple(board.starts), dict(board.waits))


def _ready(board: _Board, *kinds: str) -> Iterator[tuple[JobView, StageView]]:
    """Stages of these kinds that no worker has, by priority of their job, rounds in the order they began."""
    taken = {item.id for item in board.running}
    for job in board.jobs:
        for stage in sorted(job.live_stages, key=lambda stage: (_ORDER[stage.kind], stage.id.round, stage.id.task)):
            if stage.kind in kinds and stage.id not in taken:
                yield job, stage


def _measure(board: _Board) -> None:
    """Give each free device its next batch. The `cpu` device is free when all CPUs are."""
    for job, stage in list(_ready(board, "measure")):
        if job.device == "cpu":
            if board.free == board.machine.cpus:
                board.begin(stage, board.machine.cpus)
        elif job.device in board.machine.devices and board.free and not _device_busy(board, job.device):
            board.begin(stage, board.free[:1])


def _device_busy(board: _Board, device: str) -> bool:
    """Whether something measures on it: also a job that was held or cancelled meanwhile, whose device we cannot see."""
    devices = {job.id: job.device for job in board.jobs}
    return any(item.kind == "measure" and devices.get(item.id.job, device) == device for item in board.running)


def _draining(board: _Board) -> bool:
    """Whether to start nothing, so that the CPUs become free for the measurements gathered."""
    gathered = [stage for job, stage in _ready(board, "measure") if job.device == "cpu"]
    return len(gathered) >= _GATHER_PER_CPU * len(board.machine.cpus)


def _continue_rounds(board: _Board) -> None:
    for _, stage in list(_ready(board, "train", "build")):
        if not board.free:
            return
        if stage.kind != "train" or not _training(board, stage.id.job):
            board.begin(stage, board.free[:1])


def _training(board: _Board, job: int) -> bool:
    """Two trainings of one job at once would fit the same model twice."""
    return any(item.kind == "train" and item.id.job == job for item in board.running)


def _begin_rounds(board: _Board) -> None:
    while board.free and _room(board):
        found = next(_searches(board), None)
        if found is None:
            return
        job, stage = found
        board.begin(stage, board.free[:1], next_batch(job, board.running))


def _room(board: _Board) -> bool:
    begun = {stage.id for job in board.jobs for stage in job.live_stages if _moves(stage, job, board.machine)}
    begun |= {item.id for item in board.running}
    return len(begun) < _ROUNDS_PER_CPU * len(board.machine.cpus)


def _moves(stage: StageView, job: JobView, machine: Machine) -> bool:
    """Whether a round has begun and can go on here; one that waits for a device we lack must not keep others out."""
    return stage.kind != "search" and (stage.kind != "measure" or job.device in machine.devices)


def _searches(board: _Board) -> Iterator[tuple[JobView, StageView]]:
    """Searches that may begin: budget left, the task open, and no round of the same task on its way."""
    busy = _busy_keys(board)
    for job in board.jobs:
        if next_batch(job, board.running) > 0:
            for stage in _by_gain(job, board.running):
                if job.tasks[stage.id.task].key not in busy:
                    yield job, stage


def _by_gain(job: JobView, running: Sequence[RunningView]) -> list[StageView]:
    taken = {item.id for item in running}
    wanted = set(open_tasks(job))
    searches = (stage for stage in job.live_stages if stage.kind == "search")
    ready = [stage for stage in searches if stage.id not in taken and stage.id.task in wanted]
    return sorted(
        ready,
        key=lambda stage: (*_urgency(job.tasks[stage.id.task], job.trials_per_round), stage.id.task),
    )


def _urgency(task: TaskView, per_round: int) -> tuple[float, int]:
    """Least first. Of tasks that never ran well, the one tried least: all are reached before one gets more."""
    return -expected_gain(task, per_round), len(task.running_best)


def _busy_keys(board: _Board) -> set[str]:
    tasks = {(job.id, index): task.key for job in board.jobs for index, task in enumerate(job.tasks)}
    begun = {stage.id for job in board.jobs for stage in job.live_stages if stage.kind != "search"}
    begun |= {item.id for item in board.running}
    return {tasks[id.job, id.task] for id in begun if (id.job, id.task) in tasks}


def _explain(board: _Board) -> None:
    """Say of every job that neither runs nor starts anything what it waits for."""
    for job in board.jobs:
        kinds = {stage.kind for stage in job.live_stages}
        if kinds & {"build", "train"}:
            board.wait(job.id, "waits for a CPU")
        elif job.device not in board.machine.devices:
            board.wait(job.id, f"needs {_device_name(job.device)}, and this machine has none")
        elif "measure" in kinds:
            board.wait(job.id, f"waits for {_device_name(job.device)} to measure on")
        else:
            board.wait(job.id, _why_no_search(board, job))


def _why_no_search(board: _Board, job: JobView) -> str:
    busy = _busy_keys(board)
    keys = {job.tasks[stage.id.task].key for stage in _by_gain(job, board.running)}
    if keys and keys <= busy:
        return "waits for another job that tunes the same tasks"
    return "waits for its turn"


def _device_name(device: str) -> str:
    return "all CPUs" if device == "cpu" else f"a {device.upper()} device"
