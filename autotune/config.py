"""Read the settings in `autotune.toml`, or say on which line they are wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from autotune import schema
from autotune.device_settings import BoardSettings, DeviceSettings
from autotune.errors import ConfigError, InvalidData, UnknownKey, WrongValue, disk_problem
from autotune.ownership import is_trusted_owner, opening, owner_name
from autotune.regular_file import open_regular, read_at_most
from autotune.settings import (
    NAMED_TARGETS,
    BuildSettings,
    ClusterSettings,
    DaemonSettings,
    ExportSettings,
    JobSettings,
    MachineSettings,
    MeasureSettings,
    SearchSettings,
    SubmitSettings,
    TrainSettings,
)
from autotune.toml_file import MAX_BYTES, name_lines, parse, section

_MAX_KEY_LENGTH = 60  # characters that are shown of it
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")  # it becomes part of the name of a lock file


@dataclass(frozen=True)
class Config:
    """All settings. Each attribute is a section of `autotune.toml`.

    The sections [devices.NAME] are in `boards` where their kind is `rpc`, and else in `devices`.
    """

    machine: MachineSettings = field(default_factory=MachineSettings)
    job: JobSettings = field(default_factory=JobSettings)
    submit: SubmitSettings = field(default_factory=SubmitSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    build: BuildSettings = field(default_factory=BuildSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    devices: Annotated[
        Mapping[str, Annotated[DeviceSettings, schema.titled("a section [devices.NAME]")]],
        schema.titled("sections [devices.NAME]"),
    ] = field(default_factory=dict)
    boards: Mapping[str, BoardSettings] = field(default_factory=dict)

    @classmethod
    def sections(cls) -> dict[str, Any]:
        """Return the defaults of every section, by its name."""
        defaults = cls()
        defined = {name.name: getattr(defaults, name.name) for name in fields(defaults)}
        del defined["devices"], defined["boards"]
        return {**defined, "devices.NAME": DeviceSettings(), "devices.BOARD": BoardSettings()}


def load_config(path: Path) -> Config:
    """Read the settings from a file. A setting that is not there has its default, as has every setting without a file.

    Raises:
        ConfigError: The file is wrong. The message names the file, the line and what is wrong there. Or somebody else
            can change it.
        DiskProblem: The file cannot be read.
    """
    try:
        with open_regular(path) as file:
            _check_owner(path, os.fstat(file.fileno()))
            data = read_at_most(file, path, MAX_BYTES)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise disk_problem("read", path, error) from error
    document, text = parse(path, data)
    with name_lines(path, text, _words):
        if "boards" in document:
            raise UnknownKey(("boards",), document["boards"], tuple(Config.sections()))
        others, boards = _split(document)
        config = schema.convert(Config, others, exact=True, table="a section")
        _check_cpus(config.machine)
        _check_lock_dir(config.machine)
        for name, device in config.devices.items():
            _check_device(name, device, document["devices"][name], path.parent)
        return replace(config, boards={name: _board(name, table) for name, table in boards.items()})


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Check that only this user can change the settings, which say what runs, where, and whom to connect to."""
    if fault := opening(path, status, but_own_group=True):
        raise ConfigError(fault)
    if not is_trusted_owner(status.st_uid):
        owner = owner_name(status.st_uid)
        raise ConfigError(f"{path} belongs to {owner}, and settings say what runs as you; read it, and copy it")


def _split(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the document without its sections of boards, and these by name.

    Raises:
        WrongValue: A section [devices.NAME] is of an unknown kind.
    """
    devices = document.get("devices")
    if not isinstance(devices, Mapping):
        return dict(document), {}
    kinds = {
        name: section["kind"] for name, section in devices.items() if isinstance(section, Mapping) and "kind" in section
    }
    for name, kind in kinds.items():
        if kind not in ("simulated", "rpc"):
            raise WrongValue(("devices", name, "kind"), "simulated or rpc", kind, repr(kind))
    boards = {name: section for name, section in devices.items() if kinds.get(name) == "rpc"}
    rest = {name: section for name, section in devices.items() if name not in boards}
    return {**document, "devices": rest}, boards


def _board(name: str, table: Mapping[str, Any]) -> BoardSettings:
    keys = ("devices", name)
    _check_name(name)
    board = schema.convert(BoardSettings, table, exact=True, keys=keys, table="a section")
    if name in NAMED_TARGETS:
        raise InvalidData(f"[devices.{name}]: boards need another name, since {name} is a target already", keys)
    for key in ("key", "target"):
        if not getattr(board, key):
            raise InvalidData(f"[devices.{name}] needs a {key}", keys)
    try:
        _ = board.description
    except (ValueError, TypeError):
        raise InvalidData(f"'target' in [devices.{name}] must be an object in JSON", (*keys, "target")) from None
    return board


def check_job_device(table: dict[str, Any]) -> None:
    """Check what a job's target says of the simulated device that it is for.

    Raises:
        InvalidData: Something in it is unknown or wrong.
    """
    if "trials" in table or "speed" in table:
        raise InvalidData("'trials' and 'speed' belong into a section [devices.NAME]")
    try:
        schema.convert(DeviceSettings, table, exact=True, keys=("devices", "NAME"), table="a section")
    except InvalidData as error:
        raise InvalidData(_words(error), error.keys) from None


def _check_cpus(machine: MachineSettings) -> None:
    lent = machine.usable_cpus
    if machine.measure_cpus >= lent:
        fault = f"must leave a CPU for other stages; there are {lent}, and 0 lets measurements take them all in turn"
        raise InvalidData(f"'measure_cpus' in [machine] {fault}", ("machine", "measure_cpus"))


def _check_lock_dir(machine: MachineSettings) -> None:
    if str(machine.lock_folder).startswith("~"):  # `~` without a home, or `~user` of nobody
        fault = f"'lock_dir' in [machine]: there is no home folder for {machine.lock_dir!r}"
        raise InvalidData(fault, ("machine", "lock_dir"))


def _check_device(name: str, device: DeviceSettings, table: Mapping[str, Any], folder: Path) -> None:
    keys = ("devices", name)
    _check_name(name)
    if "kind" not in table:
        raise InvalidData(f'[devices.{name}] needs a kind: "simulated" or "rpc"', keys)
    if device.trials and not (folder / device.trials).is_file():
        raise InvalidData(f"'trials' in [devices.{name}]: there is no file {folder / device.trials}", (*keys, "trials"))


def _check_name(name: str) -> None:
    if not _DEVICE_NAME.fullmatch(name):
        fault = f"[devices.{name}]: use up to 32 letters, digits, dashes and underscores"
        raise InvalidData(fault, ("devices", name))


def _words(error: InvalidData) -> str:
    """Say what is wrong with the settings, and where."""
    if not isinstance(error, UnknownKey | WrongValue):
        return str(error)
    *parents, key = error.keys
    place = f" in {section(parents)}" if parents else ""
    if isinstance(error, WrongValue):
        return f"{key!r}{place} must be {error.expected}, not {error.found}"
    named = str(key)[:_MAX_KEY_LENGTH]
    what = f"section [{named}]" if not parents and isinstance(error.value, dict) else f"key {named!r}"
    return f"unknown {what}{place}{_hint(named, error.known)}"


def _hint(word: str, names: Iterable[str]) -> str:
    import difflib  # slow to import, and needed only to fail

    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
