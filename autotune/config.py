"""The settings in ``autotune.toml``: what there is, its defaults and bounds, and how it is read.

Each setting is declared once, below. Validation and documentation are derived from that, so a
setting cannot exist without a default, a bound and a line that says what it does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from autotune.errors import ConfigError, disk_problem
from autotune.toml_file import Wrong, line_of, parse

__all__ = [
    "Build",
    "Config",
    "Daemon",
    "Device",
    "Export",
    "Job",
    "Machine",
    "Measure",
    "Search",
    "Setting",
    "Submit",
    "Train",
    "load",
]

# Not tempfile.gettempdir(), which may differ between users who must share the locks.
_SHARED_LOCKS = Path("/tmp/autotune-locks")
_LARGEST = 2**63
_DEVICE_NAME = re.compile(r"^[A-Za-z0-9_-]{1,32}$")  # it becomes part of the name of a lock file
_POLICIES = ("predictive", "interleave", "sequential", "uncoordinated")
_WINDOW = r"(([01]?\d|2[0-3]):[0-5]\d)-(([01]?\d|2[0-3]):[0-5]\d)"
_SAMPLERS = ("", "greedy", "adaptive")
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

T = TypeVar("T", bool, int, float, str)


def _setting(
    default: T,
    doc: str,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[T, ...] = (),
    form: str = "",
) -> T:
    metadata = {"doc": doc, "least": least, "most": most, "choices": choices, "form": form}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Machine:
    """What this machine lends to tuning."""

    cpu_slots: int = _setting(0, "CPUs to use at most; 0: as many as the process may use", least=0)
    measure_cpus: int = _setting(0, "CPUs of these kept for measurements on the CPU; 0: those take all", least=0)
    lock_dir: str = _setting("", "folder of the locks that all users share; empty: /tmp/autotune-locks")
    simulated_cpus: int = _setting(0, "CPU slots that do not exist, for simulated devices only; 0: real CPUs", least=0)
    memory_limit_mb: int = _setting(
        0, "MiB that a stage, and each of its candidates, may use; 0: its CPUs' share of 80% of the memory", least=0
    )

    @property
    def usable_cpus(self) -> int:
        """``cpu_slots``, or the number of CPUs that this process may run on."""
        if self.cpu_slots:
            return self.cpu_slots
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @property
    def lock_folder(self) -> Path:
        """``lock_dir`` as a path, or the folder that all workspaces and users share."""
        return Path(self.lock_dir).expanduser() if self.lock_dir else _SHARED_LOCKS


@dataclass(frozen=True)
class Job:
    """What a job gets unless its submission says otherwise."""

    trials: int = _setting(640, "trials a job may spend", least=1)
    trials_per_round: int = _setting(8, "trials in one round of a task", least=1)
    patience: int = _setting(8, "rounds without any improvement after which a task is converged; 0: never", least=0)
    min_gain: float = _setting(0.01, "share of a task's time by which a trial must beat it to count as a gain", least=0)


@dataclass(frozen=True)
class Submit:
    """Reading a model, in a process of its own."""

    timeout_s: float = _setting(1800.0, "seconds before reading a model is given up", least=1)
    memory_share: float = _setting(0.8, "share of this machine's memory that it may take", least=0.01, most=1)


@dataclass(frozen=True)
class Search:
    """The search that proposes candidates; population to mutation are those of the evolutionary one."""

    strategy: str = _setting("beam", "strategy of jobs that name none")
    sampler: str = _setting("", "greedy or adaptive; empty: the strategy's own", choices=_SAMPLERS)
    synthesis: bool = _setting(True, "whether the adaptive sampler replaces what was measured by a synthesis")
    prior: bool = _setting(True, "whether a job's cost model starts from the one that comes with autotune")
    population: int = _setting(96, "candidates in one generation", least=1)
    generations: int = _setting(3, "generations bred in one search", least=0)
    init_unmeasured: int = _setting(24, "new random candidates that each search starts from, at least", least=0)
    mutation_probability: float = _setting(
        0.85, "probability that a candidate is mutated rather than copied", least=0, most=1
    )
    epsilon: float = _setting(0.05, "share of each batch that is drawn at random, whatever its score", least=0, most=1)
    timeout_s: float = _setting(600.0, "seconds before a search is killed", least=0.1)


@dataclass(frozen=True)
class Build:
    """Compiling candidates."""

    timeout_s: float = _setting(20.0, "seconds before the build of a candidate is killed", least=0.1)
    parallel: int = _setting(1, "candidates that one build stage compiles at a time", least=1)


@dataclass(frozen=True)
class Measure:
    """Timing candidates on the target device."""

    repeats: int = _setting(5, "timings taken of a candidate", least=1)
    min_repeat_ms: int = _setting(10, "milliseconds that one timing lasts, at least", least=0)
    warmup: int = _setting(1, "runs before the first timing", least=0)
    timeout_s: float = _setting(20.0, "seconds before a measurement is killed", least=0.1)
    threads: int = _setting(0, "threads that a candidate runs on; 0: one per CPU slot", least=0)
    disturbed_again: int = _setting(
        2, "times that a measurement on the CPU is made again when other work disturbed it", least=0
    )
    verify: bool = _setting(True, "whether a candidate must compute what its task says before it may be the best")


@dataclass(frozen=True)
class Train:
    """Updating the cost model."""

    timeout_s: float = _setting(300.0, "seconds before a training is killed", least=0.1)


@dataclass(frozen=True)
class Export:
    """Compiling and verifying the model that is handed over."""

    tolerance: float = _setting(1e-3, "largest difference, absolute or relative, from the original's outputs", least=0)
    repeats: int = _setting(20, "timings taken of the whole model", least=1)
    contenders: int = _setting(3, "candidates of a task, of the best, that are timed again; 1: none", least=1)
    timeout_s: float = _setting(3600.0, "seconds before an export is killed", least=0.1)


@dataclass(frozen=True)
class Daemon:
    """The daemon that runs the queue."""

    poll_s: float = _setting(0.5, "seconds between two looks at the queue", least=0.01)
    attempts: int = _setting(3, "times a stage is tried before its job fails", least=1)
    policy: str = _setting("predictive", "rule by which the next stages are picked", choices=_POLICIES)
    window: str = _setting("", "hours in which stages are started, such as 22:00-07:00; empty: always", form=_WINDOW)
    worker_stages: int = _setting(1000, "stages after which a worker process is replaced; 0: never", least=0)
    stop_grace_s: float = _setting(30.0, "seconds that workers have to finish when the daemon stops", least=0)


@dataclass(frozen=True)
class Device:
    """A device that does not exist, `[devices.NAME]`: stages for it take their time, and no CPU.

    The seconds are those of a stage with a full batch, and `spread` is as in a scenario for `autotune simulate`.
    """

    kind: str = _setting("simulated", "what it is; `simulated` is all there is", choices=("simulated",))
    search_s: float = _setting(10.0, "seconds of a search", least=0)
    build_s: float = _setting(15.0, "seconds of a build", least=0)
    measure_s: float = _setting(3.0, "seconds of a measurement", least=0)
    train_s: float = _setting(1.0, "seconds of a training", least=0)
    spread: float = _setting(0.0, "how far stages are from that: a relative standard deviation, nearly", least=0)
    speed: float = _setting(1.0, "divides all seconds, for tests", least=0.001)
    trials: str = _setting("", "a tuning log whose times are the answers; empty: times are drawn")


class Setting(NamedTuple):
    """One setting, as the documentation lists it."""

    section: str
    key: str
    default: int | float | str
    doc: str


@dataclass(frozen=True)
class Config:
    """All settings; each attribute is a section of ``autotune.toml``."""

    machine: Machine = Machine()
    job: Job = Job()
    submit: Submit = Submit()
    search: Search = Search()
    build: Build = Build()
    measure: Measure = Measure()
    train: Train = Train()
    export: Export = Export()
    daemon: Daemon = Daemon()
    devices: Mapping[str, Device] = field(default_factory=dict)

    @classmethod
    def describe(cls) -> list[Setting]:
        """Every setting there is, in the order of the file."""
        return [
            Setting(name, setting.name, getattr(section, setting.name), setting.metadata["doc"])
            for name, section in {**_sections(), "devices.NAME": Device()}.items()
            for setting in fields(section)
        ]


def load(path: Path) -> Config:
    """The settings in the file at ``path``, and defaults for what it leaves out.

    A missing file means defaults throughout. Raises ``ConfigError``, whose one line names the file,
    the line in it, and what is wrong there, and ``DiskProblem`` when the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise disk_problem("read", path, error) from error
    document, text = parse(path, data)
    try:
        return _config(document, path.parent)
    except Wrong as wrong:
        line = line_of(text, wrong.keys)
        raise ConfigError(f"{path}:{line}: {wrong}") from None


def _sections() -> dict[str, Any]:
    """The sections by name, with their defaults."""
    defaults = Config()
    return {section.name: getattr(defaults, section.name) for section in fields(defaults) if section.name != "devices"}


def _config(document: dict[str, Any], folder: Path) -> Config:
    defaults = _sections()
    sections: dict[str, Any] = {"devices": _devices(document.pop("devices", {}), folder)}
    for name, table in document.items():
        if name not in defaults:
            kind = f"section [{name}]" if isinstance(table, dict) else f"key {name!r}"
            raise Wrong((name,), f"unknown {kind}{_hint(name, [*defaults, 'devices'])}")
        if not isinstance(table, dict):
            raise Wrong((name,), f"{name!r} must be a section, not {_type_name(table)}")
        sections[name] = _section(name, defaults[name], table)
    return _checked(Config(**sections))


def _checked(config: Config) -> Config:
    """The settings, if they also fit together."""
    lent, kept = config.machine.usable_cpus, config.machine.measure_cpus
    if kept >= lent:
        fault = f"must leave a CPU for other stages; there are {lent}, and 0 lets measurements take them all in turn"
        raise Wrong(("machine", "measure_cpus"), f"'measure_cpus' in [machine] {fault}")
    return config


def _devices(tables: Any, folder: Path) -> dict[str, Device]:
    """The sections `[devices.NAME]`; what they refer to is found from the folder of the settings."""
    if not isinstance(tables, dict):
        raise Wrong(("devices",), f"'devices' must be sections [devices.NAME], not {_type_name(tables)}")
    return {name: _device(name, table, folder) for name, table in tables.items()}


def _device(name: str, table: Any, folder: Path) -> Device:
    keys = ("devices", name)
    if not _DEVICE_NAME.match(name):
        raise Wrong(keys, f"[devices.{name}]: use up to 32 letters, digits, dashes and underscores")
    if not isinstance(table, dict):
        raise Wrong(keys, f"{name!r} in [devices] must be a section [devices.NAME], not {_type_name(table)}")
    device: Device = _section(f"devices.{name}", Device(), table, keys)
    if "kind" not in table:
        raise Wrong(keys, f'[devices.{name}] needs a kind = "simulated"')
    if device.trials and not (folder / device.trials).is_file():
        raise Wrong((*keys, "trials"), f"'trials' in [devices.{name}]: there is no file {folder / device.trials}")
    return device


def job_device(table: dict[str, Any]) -> Device:
    """What a job says of the simulated device that it is for. Raises ``Wrong``."""
    if "trials" in table or "speed" in table:
        raise Wrong((), "'trials' and 'speed' belong into a section [devices.NAME]")
    device: Device = _section("devices.NAME", Device(), table)
    return device


def _section(name: str, defaults: Any, table: dict[str, Any], keys: tuple[str, ...] = ()) -> Any:
    settings, keys = {setting.name: setting for setting in fields(defaults)}, keys or (name,)
    values = {}
    for key, value in table.items():
        if key not in settings:
            hint = _hint(key, settings)
            raise Wrong((*keys, key), f"unknown key {key!r} in [{name}]{hint}")
        fault = _fault(value, settings[key])
        if fault:
            raise Wrong((*keys, key), f"{key!r} in [{name}] {fault}")
        values[key] = type(getattr(defaults, key))(value)
    return replace(defaults, **values)


def _fault(value: Any, setting: Any) -> str | None:
    """What is wrong with the value, as the end of a sentence about the setting."""
    wanted = type(setting.default)
    if type(value) is not wanted and (type(value), wanted) != (int, float):
        return f"must be {_TYPE_NAMES[wanted]}, not {_type_name(value)}"
    choices = setting.metadata["choices"]
    if choices and value not in choices:
        return f"must be one of {', '.join(choices)}, not {value!r}"
    if wanted is str:
        fits = not value or re.fullmatch(setting.metadata["form"] or ".*", value, re.DOTALL)
        return None if fits else f"must be {setting.metadata['doc']}; not {value!r}"
    least, most = setting.metadata["least"], setting.metadata["most"]
    if least is not None and value < least:
        return f"must be at least {least:g}, not {value}"
    if most is not None and value > most:
        return f"must be at most {most:g}, not {value}"
    if not abs(value) < _LARGEST:  # an infinity, or NaN, which is below and above nothing
        return f"must be a finite number below 2^63, not {value}"
    return None


def _type_name(value: Any) -> str:
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    return _TYPE_NAMES.get(type(value), "a date or time")


def _hint(word: str, known: Iterable[str]) -> str:
    import difflib  # slow to import, and needed only to fail

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
