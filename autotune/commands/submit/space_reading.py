"""Read a space for `submit`: what a job of commands would tune."""

from __future__ import annotations

from pathlib import Path

from autotune.command_jobs.combinations import Combinations
from autotune.command_jobs.definition import Definition
from autotune.command_jobs.space_copy import write_snapshot
from autotune.command_jobs.space_file import read_space
from autotune.command_jobs.trial import missing_program
from autotune.commands.submit.words import FLAGS
from autotune.config import Config
from autotune.daemon import capacity
from autotune.devices import for_target
from autotune.errors import BadInput, BadTarget
from autotune.machine.gpus import cuda_devices
from autotune.options import TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.storage.formats import COMMAND, TaskSpec
from autotune.storage.paths import JobPaths
from autotune.strategies import BACKEND_STRATEGIES

# Every other option is for models, and refused.
_OF_COMMANDS = (
    *("name", "trials", "trials_per_round", "priority", "seed", "fresh", "deadline", "within_s", "stop_at_ms"),
    *("on_end", "strategy", "sampler"),
)


def read_space_file(path: Path, options: TuningOptions, config: Config, folder: Path | None) -> ImportAnswer:
    """Read a space and return its only task.

    Args:
        options: What the user asked for.
        folder: The folder of the job, where a copy of the space and its files goes; None to write nothing.

    Raises:
        BadInput: The space, an option or a program that its commands need is wrong.
    """
    _check_options(options, config)
    definition, source = read_space(path)
    _check_machine(definition, config)
    _check_programs(path, definition)
    size, crc32 = (0, 0) if folder is None else write_snapshot(JobPaths(folder), definition, source)
    target = _target(definition, config)
    combinations = Combinations(definition)
    count = combinations.space.size
    task = TaskSpec(path.stem, definition.digest, 1, combinations.described, 0.0, tunable=True)
    key = for_target(target).log_kind().key
    return ImportAnswer(target, key, (), (task,), (count,), size, crc32, metric=definition.metric)


def _check_options(options: TuningOptions, config: Config) -> None:
    defaults = TuningOptions()
    for name, flag in FLAGS.items():
        if name not in _OF_COMMANDS and getattr(options, name) != getattr(defaults, name):
            raise BadInput(f"{flag} is for models; a space file says what its commands need")
    if options.strategy in BACKEND_STRATEGIES:
        raise BadInput(f"--strategy {options.strategy} works on schedules of TVM; choose another for commands")
    if config.cluster.engine:
        raise BadInput("commands run on this machine; leave [cluster] engine empty for them")
    if config.machine.simulated_cpus:
        raise BadTarget("the CPUs of this workspace are simulated ([machine] simulated_cpus); commands need real ones")


def _check_machine(definition: Definition, config: Config) -> None:
    lent = len(capacity.cpus(config).cpu_device)
    if definition.machine.cpus is not None and definition.machine.cpus > lent:
        raise BadTarget(f"[machine] cpus is {definition.machine.cpus}, and a measurement gets {lent} here")
    if definition.machine.gpu and not cuda_devices():
        raise BadTarget("[machine] gpu is true, and there is no GPU here")


def _check_programs(path: Path, definition: Definition) -> None:
    if missing := missing_program(definition):
        purpose, program = missing
        raise BadInput(f"{path}: there is no program {program!r}, which the {purpose} command needs")


def _target(definition: Definition, config: Config) -> dict[str, object]:
    cpus = definition.machine.cpus or len(capacity.cpus(config).cpu_device)
    target: dict[str, object] = {"kind": COMMAND, "cpus": cpus, "gpu": definition.machine.gpu}
    if definition.build is not None and definition.build.timeout_s is not None:
        target["build_s"] = definition.build.timeout_s
    if definition.measure.timeout_s is not None:
        target["measure_s"] = definition.measure.timeout_s
    return target
