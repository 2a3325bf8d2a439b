"""Check whether this machine and this workspace are ready for tuning."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import typer
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from autotune.commands.disk import check_disk
from autotune.commands.terminal import tell, workspace_of
from autotune.config import Config, load_config
from autotune.daemon import capacity
from autotune.device_settings import BoardSettings
from autotune.errors import AutotuneError, BoardProblem
from autotune.machine import boards
from autotune.machine.gpus import CudaDevice, GpuCounters, cuda_devices
from autotune.machine.hardware import check_platform, cpu_model, lent_cpus
from autotune.machine.survey import Survey
from autotune.storage import locks
from autotune.storage.daemon_info import running_daemon
from autotune.storage.formats import SIMULATED
from autotune.storage.paths import Workspace
from autotune.tvm_backend.cuda.runtime import installed
from autotune.tvm_backend.linker import find_linker
from autotune.tvm_backend.load import check_versions
from autotune.version import TESTED_TVM, installed_version

_OURS = "autotune-tvm"
_LOW_SPACE = 2 * 1024**3


@dataclass(frozen=True)
class Finding:
    """A line of `doctor`.

    Attributes:
        ok: Whether all is well.
        fatal: Whether tuning fails if it is not. A line that is neither ok nor fatal is a note.
    """

    ok: bool
    fatal: bool
    text: str


def examine(workspace: Workspace) -> list[Finding]:
    """Check everything that tuning needs.

    Returns:
        The findings, in the order in which tuning would need what they are about.
    """
    config = _config(workspace)
    return [
        _judged(True, _platform),
        _judged(True, _versions),
        _environment(),
        _library("xgboost", "xgboost-cpu"),
        _library("onnxruntime", "onnxruntime-gpu"),
        _linker(),
        _judged(True, partial(_settings, workspace)),
        _writable(workspace),
        _space(workspace),
        _judged(True, partial(check_disk, workspace.root)),
        _judged(True, partial(_lock_folder, workspace)),
        _cpus(config),
        *_all_of(False, partial(_survey, config)),
        *_all_of(False, _cuda),
        *_boards(config),
        *_simulated(config),
        _daemon(workspace),
    ]


def _judged(fatal: bool, check: Callable[[], str]) -> Finding:
    """Return what a check says: its text if all is well, or the error that it raises."""
    return _all_of(fatal, lambda: [Finding(True, fatal, check())])[0]


def _all_of(fatal: bool, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Return what a check finds; the error where it cannot look, which must not keep the others from being made."""
    try:
        return check()
    except AutotuneError as error:
        return [Finding(False, fatal, str(error))]


def _config(workspace: Workspace) -> Config | None:
    """Return the settings; None if they cannot be read, which the finding about them says."""
    try:
        return load_config(workspace.config)
    except AutotuneError:
        return None


def _versions() -> str:
    check_versions()
    return "TVM and its foreign-function library are the tested pair"


def _platform() -> str:
    check_platform()
    return f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"


def _environment() -> Finding:
    clashing = clashes(TESTED_TVM)
    if not clashing:
        return Finding(True, True, "no installed package needs other versions than autotune does")
    return Finding(False, True, f"{'; '.join(clashing)}: give autotune a virtual environment of its own")


def _library(*names: str) -> Finding:
    """Look for a library that several packages bring."""
    for name in names:
        if version := installed_version(name):
            return Finding(True, True, f"{name} {version}")
    return Finding(False, True, f"{names[0]} is missing; run: pip install {names[0]}")


def _linker() -> Finding:
    linker = find_linker()
    return Finding(bool(linker), True, f"linker {linker}" if linker else "no linker; install binutils or gcc")


def _settings(workspace: Workspace) -> str:
    load_config(workspace.config)
    return f"settings: {workspace.config if workspace.config.exists() else 'defaults, no autotune.toml'}"


def _writable(workspace: Workspace) -> Finding:
    ok = os.access(workspace.root, os.W_OK | os.X_OK)
    where = workspace.root.absolute()
    return Finding(ok, True, f"workspace {where}" if ok else f"the workspace {where} cannot be written to")


def _space(workspace: Workspace) -> Finding:
    free = shutil.disk_usage(workspace.root).free
    return Finding(free >= _LOW_SPACE, False, f"{free / 1024**3:.1f} GiB free on the workspace's disk")


def _lock_folder(workspace: Workspace) -> str:
    folder = load_config(workspace.config).machine.lock_folder
    locks.ensure_lock_folder(folder)
    return f"locks for this machine in {folder}"


def _survey(config: Config | None) -> list[Finding]:
    """Return what makes measured times worse on this machine, and what to do about it."""
    if config is None or config.machine.simulated_cpus:
        return []
    lent = capacity.cpus(config)
    remarks = Survey(lent.shared_cpus, lent.cpu_device, config.machine.lock_folder).remarks()
    return [
        Finding(not remark.remedy, False, f"{remark.fact}; {remark.remedy}" if remark.remedy else remark.fact)
        for remark in remarks
    ]


def _cpus(config: Config | None) -> Finding:
    machine = (config or Config()).machine
    kept = f", {machine.measure_cpus} of them for measurements only" if machine.measure_cpus else ""
    load = os.getloadavg()[0]
    busy = f"; other programs want {load:.1f} CPUs, which disturbs measurements" if load > 0.5 else ""
    return Finding(not busy, False, f"{cpu_model()}, {len(lent_cpus(machine.cpu_slots))} CPU slots{kept}{busy}")


def _cuda() -> list[Finding]:
    """What becomes of a job for CUDA here: a kernel is compiled, and launched on each GPU."""
    from autotune.tvm_backend.load import load_tvm
    from autotune.tvm_backend.target import resolve_target

    gpus = cuda_devices()
    if not gpus and not installed():
        return [Finding(False, False, "no CUDA: neither a GPU nor a compiler; jobs for cuda cannot be built here")]
    load_tvm("cuda")
    target = resolve_target("cuda", threads=1).description
    checks = [partial(_gpu, {**target, "arch": gpu.arch}, gpu) for gpu in gpus] or [partial(_cuda_build, target)]
    return [_judged(False, check) for check in checks]


def _gpu(target: dict[str, Any], gpu: CudaDevice) -> str:
    from autotune.tvm_backend.kernels.gpu_check import check_gpu

    probe = check_gpu(target, gpu)
    runs = f"runs what {probe.compiler.tool} ({probe.compiler.version}) compiles, {probe.launch_us:.1f} us a launch"
    unseen = "" if GpuCounters.open(gpu.uuid) else "; NVML does not show it: other programs on it are not noticed"
    return f"cuda:{gpu.index} {gpu.name} ({gpu.arch}) {runs}{unseen}"


def _cuda_build(target: dict[str, Any]) -> str:
    from autotune.tvm_backend.kernels.gpu_check import check_build

    compiler = check_build(target).compiler
    waits = "no GPU: jobs for cuda are searched and built, and wait to be measured"
    return f"{compiler.tool} ({compiler.version}) compiles for CUDA ({target['arch']}); {waits}"


def _simulated(config: Config | None) -> list[Finding]:
    if config is None:
        return []
    real = "the real CPUs" if not config.machine.simulated_cpus else f"{config.machine.simulated_cpus} simulated CPUs"
    return [Finding(True, False, f"{SIMULATED}:{name}, which does not exist, with {real}") for name in config.devices]


def _boards(config: Config | None) -> list[Finding]:
    """What can be compiled for each kind of board, and what its tracker says."""
    if config is None:
        return []
    trackers = sorted({board.tracker for board in config.boards.values()})
    return [
        *(_exposed(tracker) for tracker in trackers if not boards.is_loopback(tracker)),
        *(_judged(False, partial(_board, name, board)) for name, board in config.boards.items()),
    ]


def _exposed(tracker: str) -> Finding:
    return Finding(
        False,
        False,
        f"the tracker {tracker} is not on this machine: TVM's RPC has no authentication, so whoever reaches it or a"
        " board can run code there; keep them in a private network, or use a tunnel",
    )


def _board(name: str, board: BoardSettings) -> str:
    from autotune.tvm_backend.kernels.machine_check import check_cross_build
    from autotune.tvm_backend.load import load_tvm
    from autotune.tvm_backend.target import resolve_target

    load_tvm("llvm")
    check_cross_build(resolve_target(board.target, 1, board.key).description)
    counts = boards.counts(board)
    if not counts.known:
        raise BoardProblem(f"[devices.{name}]: the tracker {board.tracker} knows no board with the key {board.key!r}")
    waiting = f", {counts.pending} requests wait for one" if counts.pending else ""
    return f"[devices.{name}]: {counts.known} boards at the tracker {board.tracker}, {counts.free} free{waiting}"


def _daemon(workspace: Workspace) -> Finding:
    info = running_daemon(workspace)
    if info is None:
        return Finding(False, False, "no daemon is running here; start one with `autotune daemon start`")
    return Finding(True, False, f"the daemon runs, pid {info.identity['pid']}")


def clashes(pinned: Mapping[str, str]) -> list[str]:
    """Return what in this environment does not fit together with autotune, a line each.

    Args:
        pinned: The versions of packages without which autotune does not work.
    """
    installed = list(metadata.distributions())
    versions = {
        str(canonicalize_name(distribution.metadata["Name"] or "")): distribution.version for distribution in installed
    }
    lines = [*_unmet(versions), *_demands_of_others(installed, pinned)]
    return sorted(set(lines))


def _unmet(versions: Mapping[str, str]) -> Iterator[str]:
    """Yield the requirements of autotune that are not met. Where it is not installed, it has none."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for need in _requirements(metadata.requires(_OURS)):
            version = versions.get(canonicalize_name(need.name))
            if version is None:
                yield f"autotune needs {need.name}{need.specifier}, which is not installed"
            elif not need.specifier.contains(version, prereleases=True):
                yield f"autotune needs {need.name}{need.specifier}, and {version} is installed"


def _demands_of_others(installed: Iterable[metadata.Distribution], pinned: Mapping[str, str]) -> Iterator[str]:
    """Yield the packages that need another version of what autotune pins."""
    for other in installed:
        name = other.metadata["Name"] or "?"
        for need in _requirements(other.requires) if canonicalize_name(name) != _OURS else ():
            version = pinned.get(canonicalize_name(need.name))
            if version is not None and not need.specifier.contains(version, prereleases=True):
                yield f"{name} {other.version} needs {need.name}{need.specifier}, and autotune =={version}"


def _requirements(lines: Iterable[str] | None) -> Iterator[Requirement]:
    """Yield the requirements that apply here; those of extras do not."""
    for line in lines or ():
        with contextlib.suppress(InvalidRequirement):
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                yield need


def command(context: typer.Context) -> None:
    """Check whether this machine and this workspace are ready for tuning. Exit code 1 if they are not."""
    findings = examine(workspace_of(context))
    for finding in findings:
        tell(f"{'ok  ' if finding.ok else 'FAIL' if finding.fatal else 'note'}  {finding.text}")
    if any(finding.fatal and not finding.ok for finding in findings):
        raise typer.Exit(1)
