"""The settings in `autotune.toml`: what there is, with defaults and bounds.

Each setting is declared once, as a field of a dataclass with a default and, in `Annotated`, its bounds and a
description. The checks in `config.py` and the page `docs/reference/settings.md` follow from these declarations.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from autotune.options import AUTO
from autotune.schema import at_least, share, text, whole_number

__all__ = [
    "NAMED_TARGETS",
    "TARGET_KINDS",
    "BuildSettings",
    "ClusterSettings",
    "DaemonSettings",
    "ExportSettings",
    "JobSettings",
    "MachineSettings",
    "MeasureSettings",
    "PlanSettings",
    "SearchSettings",
    "SubmitSettings",
    "TrainSettings",
]

# The targets that a user names, and all that a job may have: that of commands follows from its space.
NAMED_TARGETS = ("llvm", "cuda", "simulated")
TARGET_KINDS = (*NAMED_TARGETS, "command")
# Not tempfile.gettempdir(), which may differ between users who must share the locks.
_SHARED_LOCKS = Path("/tmp/autotune-locks")
_HOURS = r"^((([01]?\d|2[0-3]):[0-5]\d)-(([01]?\d|2[0-3]):[0-5]\d))?\Z"


@dataclass(frozen=True)
class MachineSettings:
    """What tuning may use of this machine."""

    cpu_slots: Annotated[
        int, whole_number(0, "The number of CPUs that tuning may use. 0: all CPUs that the process may run on.")
    ] = 0
    measure_cpus: Annotated[
        int,
        whole_number(
            0,
            "How many of these CPUs are kept for measurements on the CPU. Other stages run on the rest meanwhile."
            " 0: none; a measurement waits until all CPUs are free and takes them all.",
        ),
    ] = 0
    lock_dir: Annotated[
        str, text("The folder of the locks that all users of the machine share. Empty: `/tmp/autotune-locks`.")
    ] = ""
    simulated_cpus: Annotated[
        int,
        whole_number(
            0,
            "The number of simulated CPUs. With them, jobs run on simulated devices only and lease no real CPU."
            " 0: real CPUs.",
            most=10_000,
        ),
    ] = 0
    memory_limit_mb: Annotated[
        int,
        whole_number(
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
        return Path(os.path.expanduser(self.lock_dir)) if self.lock_dir else _SHARED_LOCKS


@dataclass(frozen=True)
class JobSettings:
    """The budget of a job, and when its tasks count as converged. Options of `autotune submit` override the budget."""

    trials: Annotated[
        Annotated[int, whole_number(1)] | Literal["auto"],
        text(
            "The budget of a job, in trials. `auto`: what its tasks seem to need, and less when more would gain"
            " little.",
            title="a whole number, at least 1, or auto",
        ),
    ] = AUTO
    trials_per_round: Annotated[int, whole_number(1, "The most trials that one round of a task has.")] = 8
    patience: Annotated[
        int,
        whole_number(0, "A task has converged after this many rounds without an improvement. 0: it never converges."),
    ] = 8
    min_gain: Annotated[
        float,
        at_least(
            0.0,
            "The smallest improvement that counts for `patience`, as a share of the task's best time."
            " 0.01: a trial must be 1% faster.",
        ),
    ] = 0.01
    whole_model: Annotated[
        bool,
        text(
            "Whether the whole model is timed while its job runs, beside the model as submitted: once its tasks have"
            " times, and again when they take a fifth less and in the end. So `status` says how long it takes. Boards"
            " and clusters do without."
        ),
    ] = True


@dataclass(frozen=True)
class PlanSettings:
    """How the plan of a network is found."""

    explore: Annotated[
        bool, text("Whether jobs for CPUs search for it, as with `submit --explore`. Jobs that cannot do without.")
    ] = False


@dataclass(frozen=True)
class SubmitSettings:
    """Reading a model when it is submitted, in a separate process."""

    timeout_s: Annotated[float, at_least(1.0, "The time after which that process is killed, in seconds.")] = 1800.0
    memory_share: Annotated[
        float, share("The memory that it may use, as a share of the machine's memory.", least=0.01)
    ] = 0.8


@dataclass(frozen=True)
class SearchSettings:
    """The search stage, which proposes candidates.

    `population`, `generations`, `init_unmeasured` and `mutation_probability` are parameters of the strategy
    `evolutionary`.
    """

    strategy: Annotated[
        str,
        text("The search strategy of jobs that are submitted without `--strategy`. See docs/reference/strategies.md."),
    ] = "beam"
    sampler: Annotated[
        Literal["", "greedy", "adaptive"],
        text("How a batch is picked from what the strategy found: `greedy` or `adaptive`. Empty: the strategy's own."),
    ] = ""
    synthesis: Annotated[
        bool,
        text(
            "What the sampler `adaptive` does where it picks a configuration that was measured before. True: it takes"
            " the one that has the most frequent value of every knob. False: the next nearest of the cluster."
        ),
    ] = True
    prior: Annotated[
        bool,
        text("Whether a job's cost model starts from the one that comes with autotune. False: it starts from nothing."),
    ] = True
    population: Annotated[int, whole_number(1, "The largest number of candidates in one generation.")] = 96
    generations: Annotated[int, whole_number(0, "The number of generations in one search.")] = 3
    init_unmeasured: Annotated[
        int, whole_number(0, "The least number of new random candidates in the first generation.")
    ] = 24
    mutation_probability: Annotated[
        float, share("The probability that a candidate is mutated, rather than copied, into the next generation.")
    ] = 0.85
    epsilon: Annotated[
        float, share("The share of each batch that is picked at random, whatever the cost model predicts.")
    ] = 0.05
    timeout_s: Annotated[float, at_least(0.1, "The time after which a search is killed, in seconds.")] = 600.0


@dataclass(frozen=True)
class BuildSettings:
    """The build stage, which compiles candidates."""

    timeout_s: Annotated[
        float, at_least(0.1, "The time after which the build of one candidate is killed, in seconds.")
    ] = 20.0
    parallel: Annotated[
        int, whole_number(1, "The number of candidates that one build stage compiles at the same time.")
    ] = 1


@dataclass(frozen=True)
class MeasureSettings:
    """The measure stage, which times candidates on the target device."""

    repeats: Annotated[
        int,
        whole_number(1, "The number of timings of a candidate. One that is clearly slower than the best gets fewer."),
    ] = 5
    min_repeat_ms: Annotated[int, whole_number(0, "The shortest duration of one timing, in milliseconds.")] = 10
    warmup: Annotated[int, whole_number(0, "The number of runs before the first timing.")] = 1
    timeout_s: Annotated[
        float, at_least(0.1, "The time after which the measurement of one candidate is killed, in seconds.")
    ] = 20.0
    threads: Annotated[
        int, whole_number(0, "The number of threads that a candidate runs on. 0: one for each CPU of a measurement.")
    ] = 0
    disturbed_again: Annotated[
        int,
        whole_number(0, "The number of times a measurement is repeated when other programs disturbed it."),
    ] = 2
    gpu_spin_up_ms: Annotated[
        int,
        whole_number(
            0, "The time for which a GPU is kept busy before its first timing, in milliseconds: idle ones are slow."
        ),
    ] = 200
    gpu_cold_cache: Annotated[
        bool,
        text(
            "Whether a GPU's L2 cache is overwritten before each run of a candidate. Its launch is then timed with it,"
            " some 3 microseconds."
        ),
    ] = False
    verify: Annotated[
        bool,
        text(
            "Whether a candidate that would be the best of its task is first checked against the unscheduled task, on"
            " random inputs."
        ),
    ] = True


@dataclass(frozen=True)
class TrainSettings:
    """The train stage, which updates the cost model."""

    timeout_s: Annotated[float, at_least(0.1, "The time after which a training is killed, in seconds.")] = 300.0


@dataclass(frozen=True)
class ExportSettings:
    """The export: compiling the whole model, verifying it and timing it."""

    tolerance: Annotated[
        float,
        at_least(
            0.0,
            "The largest error that is allowed between an output of the compiled model and that of the model as"
            " submitted, relative to the output's largest value.",
        ),
    ] = 1e-3
    tolerance_fp16: Annotated[
        float,
        at_least(0.0, "The same for a job that was submitted with `--precision fp16`."),
    ] = 2e-2
    tolerance_bf16: Annotated[
        float,
        at_least(0.0, "The same for a job that was submitted with `--precision bf16`."),
    ] = 5e-2
    repeats: Annotated[int, whole_number(1, "The number of timings of the whole model.")] = 20
    contenders: Annotated[
        int,
        whole_number(1, "How many of the best candidates of a task are timed again before one is chosen. 1: none is."),
    ] = 8
    timeout_s: Annotated[float, at_least(0.1, "The time after which an export is killed, in seconds.")] = 3600.0
    cuda_graph: Annotated[
        bool, text("Whether a library for CUDA launches its kernels together, as a CUDA graph, where it can.")
    ] = True


@dataclass(frozen=True)
class DaemonSettings:
    """The daemon, which runs the queue."""

    poll_s: Annotated[float, at_least(0.01, "The longest time between two looks at the queue, in seconds.")] = 0.5
    attempts: Annotated[
        int,
        whole_number(
            1, "How often a stage is tried before its task is set aside. The job continues with its other tasks."
        ),
    ] = 3
    policy: Annotated[
        Literal["predictive", "interleave", "sequential", "uncoordinated"],
        text("The policy that picks the next stages. See docs/reference/policies.md."),
    ] = "predictive"
    window: Annotated[
        str,
        text(
            "The hours in which stages may run, such as `22:00-07:00`, in local time. Empty: always.",
            _HOURS,
            "hours such as 22:00-07:00, or empty",
        ),
    ] = ""
    on_end_timeout_s: Annotated[
        float, at_least(1.0, "The time after which the command of `submit --on-end` is killed, in seconds.")
    ] = 600.0
    worker_stages: Annotated[
        int, whole_number(0, "The number of stages after which a worker process is replaced. 0: it never is.")
    ] = 1000
    log_mb: Annotated[
        int,
        whole_number(
            1,
            "The size of a log of the daemon or of a worker in `logs/`, in megabytes, at which an empty file replaces"
            " it. The full one is kept as `NAME.1`.",
        ),
    ] = 10
    stop_grace_s: Annotated[
        float,
        at_least(0.0, "The time that workers get to finish their stages when the daemon is told to stop, in seconds."),
    ] = 30.0


@dataclass(frozen=True)
class ClusterSettings:
    """Running stages on the nodes of a Ray cluster in place of this machine. See docs/guides/cluster.md."""

    engine: Annotated[
        Literal["", "ray"],
        text("What runs stages on other machines: `ray`. Empty: stages run on this machine."),
    ] = ""
    address: Annotated[
        str,
        text(
            "The address of the Ray cluster: `ray://HOST:PORT`, or on a machine that is one of its nodes `HOST:PORT` or"
            " `auto`."
        ),
    ] = "auto"
    node_timeout_s: Annotated[
        float,
        at_least(
            1.0,
            "The time after which a node that does not answer is lost, in seconds. Its stages run elsewhere.",
        ),
    ] = 30.0
