"""The settings in `autotune.toml`: what there is, with defaults and bounds.

Each setting is declared once, as a field of a dataclass with a default and, in `Annotated`, its bounds and a
description. The checks in `config.py` and the page `docs/reference/settings.md` follow from these declarations.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from autotune import schema

if TYPE_CHECKING:
    from msgspec import Meta

__all__ = [
    "BoardSettings",
    "BuildSettings",
    "ClusterSettings",
    "DaemonSettings",
    "DeviceSettings",
    "ExportSettings",
    "JobSettings",
    "MachineSettings",
    "MeasureSettings",
    "SearchSettings",
    "SubmitSettings",
    "TrainSettings",
]

# Not tempfile.gettempdir(), which may differ between users who must share the locks.
_SHARED_LOCKS = Path("/tmp/autotune-locks")
_HOURS = r"^((([01]?\d|2[0-3]):[0-5]\d)-(([01]?\d|2[0-3]):[0-5]\d))?\Z"


def _whole(least: int, description: str) -> Meta:
    return schema.whole_number(least, description)


def _number(least: float, description: str) -> Meta:
    return schema.number(least, description=description)


def _share(description: str, least: float = 0.0) -> Meta:
    return schema.number(least, 1.0, description)


def _text(description: str, pattern: str | None = None, title: str | None = None) -> Meta:
    import msgspec

    return msgspec.Meta(pattern=pattern, title=title, description=description)


@dataclass(frozen=True)
class MachineSettings:
    """What tuning may use of this machine."""

    cpu_slots: Annotated[
        int, _whole(0, "The number of CPUs that tuning may use. 0: all CPUs that the process may run on.")
    ] = 0
    measure_cpus: Annotated[
        int,
        _whole(
            0,
            "How many of these CPUs are kept for measurements on the CPU. Other stages run on the rest meanwhile."
            " 0: none; a measurement waits until all CPUs are free and takes them all.",
        ),
    ] = 0
    lock_dir: Annotated[
        str, _text("The folder of the locks that all users of the machine share. Empty: `/tmp/autotune-locks`.")
    ] = ""
    simulated_cpus: Annotated[
        int,
        _whole(
            0,
            "The number of simulated CPUs. With them, jobs run on simulated devices only and lease no real CPU."
            " 0: real CPUs.",
        ),
    ] = 0
    memory_limit_mb: Annotated[
        int,
        _whole(
            0,
            "The memory that a stage may use, and each of its candidates, in MiB. 0: a part of 80% of the machine's"
            " memory, in proportion to the stage's CPUs, and at least 2048.",
        ),
    ] = 0

    @property
    def usable_cpus(self) -> int:
        """Return `cpu_slots`, or the number of CPUs that this process may run on."""
        if self.cpu_slots:
            return self.cpu_slots
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @property
    def lock_folder(self) -> Path:
        """Return `lock_dir` as a path, or the folder that all workspaces and users share."""
        return Path(self.lock_dir).expanduser() if self.lock_dir else _SHARED_LOCKS


@dataclass(frozen=True)
class JobSettings:
    """The budget of a job, and when its tasks count as converged. Options of `autotune submit` override the budget."""

    trials: Annotated[
        int,
        _whole(
            0,
            "The budget of a job, in trials. 0: what its tasks seem to need, and less when more would gain little."
            " `submit --trials auto` says the same.",
        ),
    ] = 0
    trials_per_round: Annotated[int, _whole(1, "The number of trials in one round of a task.")] = 8
    patience: Annotated[
        int, _whole(0, "A task has converged after this many rounds without an improvement. 0: it never converges.")
    ] = 8
    min_gain: Annotated[
        float,
        _number(
            0.0,
            "The smallest improvement that counts for `patience`, as a share of the task's best time."
            " 0.01: a trial must be 1% faster.",
        ),
    ] = 0.01


@dataclass(frozen=True)
class SubmitSettings:
    """Reading a model when it is submitted. A process of its own does it."""

    timeout_s: Annotated[float, _number(1.0, "The time after which that process is killed, in seconds.")] = 1800.0
    memory_share: Annotated[
        float, _share("The memory that it may use, as a share of the machine's memory.", least=0.01)
    ] = 0.8


@dataclass(frozen=True)
class SearchSettings:
    """The search stage, which proposes candidates.

    `population`, `generations`, `init_unmeasured` and `mutation_probability` are parameters of the strategy
    `evolutionary`.
    """

    strategy: Annotated[
        str,
        _text("The search strategy of jobs that are submitted without `--strategy`. See docs/reference/strategies.md."),
    ] = "beam"
    sampler: Annotated[
        Literal["", "greedy", "adaptive"],
        _text("How a batch is picked from what the strategy found: `greedy` or `adaptive`. Empty: the strategy's own."),
    ] = ""
    synthesis: Annotated[
        bool,
        _text(
            "What the sampler `adaptive` does where it picks a configuration that was measured before. True: it takes"
            " the one that has the most frequent value of every knob. False: the next nearest of the cluster."
        ),
    ] = True
    prior: Annotated[
        bool,
        _text(
            "Whether a job's cost model starts from the one that comes with autotune. False: it starts from nothing."
        ),
    ] = True
    population: Annotated[int, _whole(1, "The largest number of candidates in one generation.")] = 96
    generations: Annotated[int, _whole(0, "The number of generations in one search.")] = 3
    init_unmeasured: Annotated[int, _whole(0, "The least number of new random candidates in the first generation.")] = (
        24
    )
    mutation_probability: Annotated[
        float, _share("The probability that a candidate is mutated, rather than copied, into the next generation.")
    ] = 0.85
    epsilon: Annotated[
        float, _share("The share of each batch that is picked at random, whatever the cost model predicts.")
    ] = 0.05
    timeout_s: Annotated[float, _number(0.1, "The time after which a search is killed, in seconds.")] = 600.0


@dataclass(frozen=True)
class BuildSettings:
    """The build stage, which compiles candidates."""

    timeout_s: Annotated[
        float, _number(0.1, "The time after which the build of one candidate is killed, in seconds.")
    ] = 20.0
    parallel: Annotated[int, _whole(1, "The number of candidates that one build stage compiles at the same time.")] = 1


@dataclass(frozen=True)
class MeasureSettings:
    """The measure stage, which times candidates on the target device."""

    repeats: Annotated[
        int, _whole(1, "The number of timings of a candidate. One that is clearly slower than the best gets fewer.")
    ] = 5
    min_repeat_ms: Annotated[int, _whole(0, "The shortest duration of one timing, in milliseconds.")] = 10
    warmup: Annotated[int, _whole(0, "The number of runs before the first timing.")] = 1
    timeout_s: Annotated[
        float, _number(0.1, "The time after which the measurement of one candidate is killed, in seconds.")
    ] = 20.0
    threads: Annotated[
        int, _whole(0, "The number of threads that a candidate runs on. 0: one for each CPU of a measurement.")
    ] = 0
    disturbed_again: Annotated[
        int, _whole(0, "The number of times a measurement on the CPU is repeated when other programs disturbed it.")
    ] = 2
    gpu_spin_up_ms: Annotated[
        int,
        _whole(
            0, "The time for which a GPU is kept busy before its first timing, in milliseconds: idle ones are slow."
        ),
    ] = 200
    gpu_cold_cache: Annotated[
        bool,
        _text(
            "Whether a GPU's L2 cache is overwritten before each run of a candidate. Its launch is then timed with it,"
            " some 3 microseconds."
        ),
    ] = False
    verify: Annotated[
        bool,
        _text(
            "Whether a candidate that would be the best of its task is first checked against the unscheduled task, on"
            " random inputs."
        ),
    ] = True


@dataclass(frozen=True)
class TrainSettings:
    """The train stage, which updates the cost model."""

    timeout_s: Annotated[float, _number(0.1, "The time after which a training is killed, in seconds.")] = 300.0


@dataclass(frozen=True)
class ExportSettings:
    """The export: compiling the whole model, verifying it and timing it."""

    tolerance: Annotated[
        float,
        _number(
            0.0,
            "The largest error that is allowed between an output of the compiled model and that of the model as"
            " submitted, relative to the output's largest value.",
        ),
    ] = 1e-3
    repeats: Annotated[int, _whole(1, "The number of timings of the whole model.")] = 20
    contenders: Annotated[
        int,
        _whole(1, "How many of the best candidates of a task are timed again before one is chosen. 1: none is."),
    ] = 3
    timeout_s: Annotated[float, _number(0.1, "The time after which an export is killed, in seconds.")] = 3600.0


@dataclass(frozen=True)
class DaemonSettings:
    """The daemon, which runs the queue."""

    poll_s: Annotated[float, _number(0.01, "The longest time between two looks at the queue, in seconds.")] = 0.5
    attempts: Annotated[
        int, _whole(1, "How often a stage is tried before its task is set aside. The job goes on with its other tasks.")
    ] = 3
    policy: Annotated[
        Literal["predictive", "interleave", "sequential", "uncoordinated"],
        _text("The policy that picks the next stages. See docs/reference/policies.md."),
    ] = "predictive"
    window: Annotated[
        str,
        _text(
            "The hours in which stages may run, such as `22:00-07:00`, in local time. Empty: always.",
            _HOURS,
            "hours such as 22:00-07:00, or empty",
        ),
    ] = ""
    on_end_timeout_s: Annotated[
        float, _number(1.0, "The time after which the command of `submit --on-end` is killed, in seconds.")
    ] = 600.0
    worker_stages: Annotated[
        int, _whole(0, "The number of stages after which a worker process is replaced. 0: it never is.")
    ] = 1000
    log_mb: Annotated[
        int,
        _whole(
            1,
            "The size of a log of the daemon or of a worker in `logs/`, in megabytes, at which it goes on in an empty"
            " file. What was there is kept as `NAME.1` until then.",
        ),
    ] = 10
    stop_grace_s: Annotated[
        float,
        _number(0.0, "The time that workers get to finish their stages when the daemon is told to stop, in seconds."),
    ] = 30.0


@dataclass(frozen=True)
class ClusterSettings:
    """Running stages on the nodes of a Ray cluster in place of this machine. See docs/guides/cluster.md."""

    engine: Annotated[
        Literal["", "ray"],
        _text("What runs stages on other machines: `ray`. Empty: stages run on this machine."),
    ] = ""
    address: Annotated[
        str,
        _text(
            "The address of the Ray cluster: `ray://HOST:PORT`, or on a machine that is one of its nodes `HOST:PORT` or"
            " `auto`."
        ),
    ] = "auto"
    node_timeout_s: Annotated[
        float,
        _number(
            1.0,
            "The time after which a node that does not answer is lost, in seconds. Its stages run elsewhere.",
        ),
    ] = 30.0


@dataclass(frozen=True)
class DeviceSettings:
    """A simulated device called NAME, for tests and for trying out policies.

    Stages for it take time but use no CPU. Jobs run on it that are submitted with `--target simulated`. `search_s` to
    `train_s` are the mean durations of stages with a full batch.
    """

    kind: Annotated[
        Literal["simulated"], _text("What the device is. It has no default: each device must say `simulated`.")
    ] = "simulated"
    search_s: Annotated[float, _number(0.0, "The duration of a search, in seconds.")] = 10.0
    build_s: Annotated[float, _number(0.0, "The duration of a build, in seconds.")] = 15.0
    measure_s: Annotated[float, _number(0.0, "The duration of a measurement, in seconds.")] = 3.0
    train_s: Annotated[float, _number(0.0, "The duration of a training, in seconds.")] = 1.0
    spread: Annotated[
        float,
        _number(
            0.0,
            "The spread of durations: the standard deviation of their logarithm, which is close to the relative"
            " standard deviation while it is small. 0: all durations are the mean.",
        ),
    ] = 0.0
    speed: Annotated[float, _number(0.001, "All durations are divided by this.")] = 1.0
    trials: Annotated[
        str,
        _text(
            "The path of a tuning log, from the workspace. Measurements give the times that are in it. Empty: times"
            " are drawn at random."
        ),
    ] = ""


@dataclass(frozen=True)
class BoardSettings:
    """Boards called NAME that are measured on over TVM's RPC. See docs/guides/boards.md.

    Jobs for them are submitted with `--target NAME`.
    """

    kind: Annotated[
        Literal["rpc"], _text("What the devices are. It has no default: a section of boards must say `rpc`.")
    ] = "rpc"
    tracker: Annotated[
        str,
        _text("The address of TVM's RPC tracker.", r"^(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):[0-9]{1,5}\Z", "HOST:PORT"),
    ] = "127.0.0.1:9190"
    key: Annotated[
        str,
        _text(
            "The key that the boards have at the tracker. It must be given.",
            r"^[A-Za-z0-9_.-]*\Z",
            "letters, digits, dots, dashes and underscores",
        ),
    ] = ""
    target: Annotated[
        str,
        _text(
            "The target of the boards in JSON, of the kind `llvm`. Its `num-cores` is the number of threads that"
            " candidates run on. It must be given."
        ),
    ] = ""
    count: Annotated[int, _whole(1, "The number of boards with this key that are used at the same time.")] = 1
    request_timeout_s: Annotated[
        float, _number(0.1, "The time that a measurement waits for a free board, in seconds.")
    ] = 30.0
    retry_s: Annotated[
        float,
        _number(
            0.1,
            "The time for which a board is set aside when it does not work, in seconds. It doubles, up to ten minutes,"
            " until the board works again.",
        ),
    ] = 30.0

    @property
    def description(self) -> dict[str, Any]:
        """Return the target as TVM takes it.

        Raises:
            ValueError: It is not an object in JSON.
        """
        return dict(json.loads(self.target))
