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

# The targets that a user names, and all that a job may have: that of commands follows from its space.
NAMED_TARGETS = ("llvm", "cuda", "simulated")
TARGET_KINDS = (*NAMED_TARGETS, "command")
# Not tempfile.gettempdir(), which may differ between users who must share the locks.
_SHARED_LOCKS = Path("/tmp/autotune-locks")
_HOURS = r"^((([01]?\d|2[0-3]):[0-5]\d)-(([01]?\d|2[0-3]):[0-5]\d))?\Z"


@dataclass(frozen=True)
class MachineSettings:
    """What tuning may use of this machine."""

    cpu_slots: Annotated[int, whole_number(0, "How many CPUs tuning may use. 0: all.")] = 0
    measure_cpus: Annotated[
        int,
        whole_number(
            0,
            "How many of these are kept for measurements, while other stages run on the rest. 0: a measurement waits"
            " until all CPUs are free, and takes them all.",
        ),
    ] = 0
    lock_dir: Annotated[str, text("The folder of the locks that all users share. Empty: `/tmp/autotune-locks`.")] = ""
    simulated_cpus: Annotated[
        int,
        whole_number(
            0, "How many CPUs are simulated. With them, jobs run on simulated devices only. 0: real CPUs.", most=10_000
        ),
    ] = 0
    memory_limit_mb: Annotated[
        int,
        whole_number(
            0,
            "What a stage, and each of its candidates, may use, in MiB. 0: the share of 80% of the memory that matches"
            " the stage's CPUs, at least 2048.",
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
    """The budget of a job, which `submit` can override, and when its tasks count as converged."""

    trials: Annotated[
        Annotated[int, whole_number(1)] | Literal["auto"],
        text(
            "`auto`: what the tasks seem to need, and less when more would gain little.",
            title="a whole number, at least 1, or auto",
        ),
    ] = AUTO
    trials_per_round: Annotated[int, whole_number(1, "The most trials of one round of a task.")] = 8
    patience: Annotated[
        int, whole_number(0, "A task has converged after this many rounds without an improvement. 0: never.")
    ] = 8
    min_gain: Annotated[
        float,
        at_least(
            0.0, "The smallest improvement that counts for `patience`. 0.01: a trial must be 1% faster than the best."
        ),
    ] = 0.01
    whole_model: Annotated[bool, text("Whether a job also times the whole model. See docs/guides/budgets.md.")] = True


@dataclass(frozen=True)
class SubmitSettings:
    """The process that reads a model."""

    timeout_s: Annotated[float, at_least(1.0, "Seconds until it is killed.")] = 1800.0
    memory_share: Annotated[float, share("The share of the memory that it may use.", least=0.01)] = 0.8


@dataclass(frozen=True)
class SearchSettings:
    """The stage that proposes candidates. `population` to `mutation_probability` are of the strategy `evolutionary`."""

    strategy: Annotated[
        str,
        text("What `submit` takes without `--strategy`. See docs/reference/strategies.md."),
    ] = "beam"
    sampler: Annotated[
        Literal["", "greedy", "adaptive"], text("What `submit` takes without `--sampler`. Empty: the strategy's own.")
    ] = ""
    synthesis: Annotated[
        bool,
        text(
            "What `adaptive` takes in place of a configuration that was measured before. True: the one with the most"
            " frequent value of every knob. False: the next nearest of the cluster."
        ),
    ] = True
    prior: Annotated[
        bool, text("Whether a cost model starts from the one that comes with autotune, or from nothing.")
    ] = True
    population: Annotated[int, whole_number(1, "The most candidates in a generation.")] = 96
    generations: Annotated[int, whole_number(0, "The generations of a search.")] = 3
    init_unmeasured: Annotated[int, whole_number(0, "The least random candidates in the first generation.")] = 24
    mutation_probability: Annotated[
        float, share("The probability that a candidate is mutated, not copied, into the next generation.")
    ] = 0.85
    epsilon: Annotated[float, share("The share of a batch that is picked at random.")] = 0.05
    timeout_s: Annotated[float, at_least(0.1, "Seconds until a search is killed.")] = 600.0


@dataclass(frozen=True)
class BuildSettings:
    """The stage that compiles candidates."""

    timeout_s: Annotated[float, at_least(0.1, "Seconds until the build of one candidate is killed.")] = 20.0
    parallel: Annotated[int, whole_number(1, "How many candidates a stage compiles at the same time.")] = 1


@dataclass(frozen=True)
class MeasureSettings:
    """The stage that times candidates."""

    repeats: Annotated[
        int, whole_number(1, "How often a candidate is timed; less if it is clearly slower than the best.")
    ] = 5
    min_repeat_ms: Annotated[int, whole_number(0, "The least milliseconds of one timing.")] = 10
    warmup: Annotated[int, whole_number(0, "How many runs precede the first timing.")] = 1
    timeout_s: Annotated[float, at_least(0.1, "Seconds until the measurement of one candidate is killed.")] = 20.0
    threads: Annotated[
        int, whole_number(0, "How many threads a candidate runs on. 0: one for each CPU of a measurement.")
    ] = 0
    disturbed_again: Annotated[int, whole_number(0, "How often a disturbed measurement is repeated.")] = 2
    in_context: Annotated[
        bool,
        text("Whether new jobs time kernels on CPUs with their constants where the model has them, not in a loop."),
    ] = True
    kept_open_s: Annotated[
        float, at_least(0.0, "Seconds for which a GPU stays open for the next measurement. 0: each one opens it anew.")
    ] = 2.0
    gpu_spin_up_ms: Annotated[
        int, whole_number(0, "Milliseconds for which a GPU is kept busy before its first timing: idle ones are slow.")
    ] = 200
    gpu_cold_cache: Annotated[
        bool, text("Whether a GPU's L2 cache is overwritten before each run. The launch is then timed, too: some 3 us.")
    ] = False
    verify: Annotated[
        bool, text("Whether a candidate's results are compared before it may be the best of its task.")
    ] = True


@dataclass(frozen=True)
class TrainSettings:
    """The stage that fits the cost model."""

    timeout_s: Annotated[float, at_least(0.1, "Seconds until a training is killed.")] = 300.0


@dataclass(frozen=True)
class ExportSettings:
    """Exports."""

    tolerance: Annotated[
        float,
        at_least(
            0.0,
            "The largest error of an output against the model as submitted (int8: as quantised), relative to its"
            " largest value.",
        ),
    ] = 1e-3
    tolerance_fp16: Annotated[float, at_least(0.0, "The same with `--precision fp16`.")] = 2e-2
    tolerance_tf32: Annotated[float, at_least(0.0, "The same with `--precision tf32`.")] = 1e-2
    tolerance_bf16: Annotated[float, at_least(0.0, "The same with `--precision bf16`.")] = 5e-2
    tolerance_activations: Annotated[
        float,
        at_least(0.0, "The same with `--activations int8`, against the same weights with activations in float32."),
    ] = 1e-1
    repeats: Annotated[int, whole_number(1, "How often the whole model is timed.")] = 20
    compare_s: Annotated[
        float,
        at_least(
            0.1,
            "Seconds that this may take at each set of shapes, or for a language model at all together: no turn of"
            " fresh processes begins, after the first, that would end later.",
        ),
    ] = 5.0
    contenders: Annotated[
        int,
        whole_number(
            1,
            "How many of the best candidates of a task are timed again before one is chosen, where the queue has not"
            " timed them in the context of the model. 1: none.",
        ),
    ] = 8
    kept_mb: Annotated[
        int,
        whole_number(
            0, "Megabytes of compiled kernels that are kept in `logs/objects`, so that none is compiled twice. 0: none."
        ),
    ] = 256
    timeout_s: Annotated[float, at_least(0.1, "Seconds until an export is killed.")] = 3600.0
    cuda_graph: Annotated[
        bool, text("Whether a library for CUDA launches its kernels as a CUDA graph, where it can.")
    ] = True

    @property
    def kept_bytes(self) -> int:
        """Return `kept_mb` in bytes."""
        return self.kept_mb * 10**6


@dataclass(frozen=True)
class DaemonSettings:
    """The daemon."""

    poll_s: Annotated[float, at_least(0.01, "The most seconds between two looks at the queue.")] = 0.5
    attempts: Annotated[
        int,
        whole_number(
            1, "How often a stage is tried before its task is set aside and the job continues with the others."
        ),
    ] = 3
    policy: Annotated[
        Literal["predictive", "interleave", "sequential", "uncoordinated"],
        text("What picks the next stages. See docs/reference/policies.md."),
    ] = "predictive"
    window: Annotated[
        str, text("When stages may run, in local time. Empty: always.", _HOURS, "hours such as 22:00-07:00, or empty")
    ] = ""
    on_end_timeout_s: Annotated[float, at_least(1.0, "Seconds until the command of `submit --on-end` is killed.")] = (
        600.0
    )
    worker_stages: Annotated[int, whole_number(0, "After how many stages a worker process is replaced. 0: never.")] = (
        1000
    )
    log_mb: Annotated[
        int,
        whole_number(
            1,
            "The megabytes at which an empty log of the daemon or of a worker replaces the full one, which is kept as"
            " `NAME.1`.",
        ),
    ] = 10
    stop_grace_s: Annotated[
        float, at_least(0.0, "Seconds that workers get to finish their stages when the daemon is told to stop.")
    ] = 30.0


@dataclass(frozen=True)
class ClusterSettings:
    """Stages on the nodes of a Ray cluster. See docs/guides/cluster.md."""

    engine: Annotated[Literal["", "ray"], text("Empty: stages run on this machine.")] = ""
    address: Annotated[str, text("`ray://HOST:PORT`, or on a node of the cluster `HOST:PORT` or `auto`.")] = "auto"
    node_timeout_s: Annotated[
        float, at_least(1.0, "Seconds after which a node that does not answer is lost. Its stages run elsewhere.")
    ] = 30.0
