"""Targets: from the user's text to a complete TVM target and the key of its tuning logs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.config import check_job_device
from autotune.device_settings import BoardSettings
from autotune.devices import Board, Device, for_target
from autotune.errors import BadTarget, InvalidData, first_line
from autotune.machine.gpus import cuda_devices
from autotune.options import Precision
from autotune.settings import NAMED_TARGETS
from autotune.storage.formats import SIMULATED
from autotune.tvm_backend.isa.values import Elements
from autotune.tvm_backend.linker import architecture
from autotune.tvm_backend.load import load_intrinsics
from autotune.tvm_backend.types import Target

_LISTS = ("keys", "libs", "mattr")  # options of a target that have several values
DEFAULT_CUDA_ARCH = "sm_80"
# The first architectures for whose tensor cores there are rules: those of MetaSchedule, and ours.
_FIRST_TENSOR_CORES: Mapping[Precision, int] = {"fp16": 75, "tf32": 80, "bf16": 80}
# With the suffix TVM takes the architecture for one without tensor cores, and nothing that it generates needs it.
_ARCH_VARIANT = re.compile(r"(sm_\d+)[af]")
_CUDA_LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "registers_per_block": 65536,
    "thread_warp_size": 32,
}


@dataclass(frozen=True)
class ResolvedTarget:
    """A complete target.

    Attributes:
        description: the target as TVM accepts it.
        key: of its tuning logs. It covers everything that a measured time depends on besides the task: target, device
            model and TVM version.
        lowered_for: the target that a model is lowered for: this CPU where the target is a simulated device, else the
            target itself.
    """

    description: dict[str, Any]
    key: str
    lowered_for: dict[str, Any]


def target_kind(text: str) -> str:
    """Return the kind of a target, `llvm`, `cuda` or `simulated`, without importing TVM.

    Raises:
        BadTarget: the text names no such kind.
    """
    kind = _parse(text).get("kind")
    if kind not in NAMED_TARGETS:
        fault = "give llvm, cuda, simulated or a JSON object with such a kind"
        raise BadTarget(f"target {text!r}: kind is {kind!r}; {fault}")
    return str(kind)


def resolve_target(text: str, threads: int, board: str = "") -> ResolvedTarget:
    """Complete a target with the properties of this machine.

    Args:
        text: `llvm`, `cuda`, `simulated`, such a kind with options (`llvm -mcpu=znver3`), or a JSON object. A simulated
            target may have the settings of a section [devices.NAME], except `kind` and `trials`.
        threads: CPU threads that a compiled model will use.
        board: The key of the boards that the target is for. Nothing of this machine completes it.

    Raises:
        BadTarget: TVM does not know the target or one of its options.
    """
    import tvm

    target_kind(text)
    given = _parse(text)
    if given["kind"] == SIMULATED:
        _check_simulated(text, given)
        return ResolvedTarget(given, for_target(given).log_kind().key, _cpu({"kind": "llvm"}, threads))
    if board:
        _check_board(text, given)
        device: Device = Board(given, settings=BoardSettings(key=board))
    else:
        _check_here(text, given)
        device = for_target(_cpu(given, threads) if given["kind"] == "llvm" else _cuda(given, threads))
    complete = dict(device.target)
    try:
        tvm.target.Target(complete)
    except (ValueError, TypeError, tvm.error.InternalError) as error:
        raise BadTarget(f"target {text!r}: {first_line(error)}") from error
    return ResolvedTarget(complete, device.log_kind().key, complete)


def check_tensor_cores(description: Mapping[str, Any], precision: Precision) -> None:
    """Check that a target is a GPU whose tensor cores compute in a precision: fp16, tf32 or bf16.

    Raises:
        BadTarget: It is not.
    """
    arch = str(description.get("arch", ""))
    least = _FIRST_TENSOR_CORES[precision]
    if description["kind"] != "cuda" or int(arch.removeprefix("sm_") or 0) < least:
        where = f"which are used from sm_{least} on; the target is {arch}"
        raise BadTarget(f"--precision {precision} is for tensor cores, {where}")


def tvm_target(description: Mapping[str, Any]) -> Target:
    """Make TVM's object from the description of a target, and load the intrinsics of its CPU.

    A description with a triple is one of a board, or the user's own.
    """
    import tvm

    if description["kind"] == "llvm":
        load_intrinsics(str(description.get("mtriple") or ""))
    return tvm.target.Target(dict(description))


def _check_simulated(text: str, given: dict[str, Any]) -> None:
    try:
        check_job_device(given)
    except InvalidData as error:
        raise BadTarget(f"target {text!r}: {error}") from error


def _check_board(text: str, given: dict[str, Any]) -> None:
    if given["kind"] != "llvm":
        raise BadTarget(f"target {text!r}: boards are measured on their CPUs, with the kind llvm")
    cores = given.get("num-cores")
    if not isinstance(cores, int) or cores < 1:
        raise BadTarget(f"target {text!r}: give num-cores, the number of threads that the board runs on")


def _check_here(text: str, given: dict[str, Any]) -> None:
    """Refuse a target whose code another machine would have to run."""
    other = architecture(str(given.get("mtriple") or ""))
    if given["kind"] == "llvm" and other != architecture(""):
        raise BadTarget(
            f"target {text!r}: this machine is {architecture('')}, and cannot run code for {other}; name boards that"
            ' can in autotune.toml, as a section [devices.NAME] with kind = "rpc", and submit with --target NAME'
        )


def _parse(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        kind, *options = text.split() or [""]
        return {"kind": kind, **dict(_option(text, option) for option in options)}
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadTarget(f"target {text!r} is not valid JSON: {error}") from error
    return dict(parsed)


def _option(text: str, option: str) -> tuple[str, Any]:
    """Read an option as TVM's earlier versions wrote them: `-mcpu=znver3`."""
    name, equals, value = option.removeprefix("-").partition("=")
    if not (option.startswith("-") and name and equals):
        raise BadTarget(f"target {text!r}: {option!r} is not an option such as -mcpu=znver3; or give a JSON object")
    if name in _LISTS:
        return name, value.split(",")
    return name, int(value) if value.isdecimal() else value


def _cpu(given: dict[str, Any], threads: int) -> dict[str, Any]:
    from tvm.target import codegen

    here = {"mcpu": str(codegen.llvm_get_system_cpu()), "num-cores": threads}
    unnamed = [] if {"mcpu", "mattr", "mtriple"}.intersection(given) else _unnamed_sets(here)
    return {**here, **({"mattr": unnamed} if unnamed else {}), **given}


def _unnamed_sets(here: Mapping[str, Any]) -> list[str]:
    """The sets of instructions for products that this CPU has and the CPU that LLVM takes it for has not.

    LLVM takes a virtual machine that hides some features for an older CPU.
    """
    import tvm

    from autotune.tvm_backend.isa.available import unnamed_features

    return [f"+{name}" for name in unnamed_features(tvm.target.Target({"kind": "llvm", **here}))]


def instructions(description: Mapping[str, Any], *, integers: bool, bfloat16: bool = False) -> list[str]:
    """Return the sets of instructions that code for the CPU of a target may use, as the system lists them.

    Args:
        integers: Whether the code has integer kernels.
        bfloat16: Whether it has kernels for bfloat16.
    """
    from autotune.tvm_backend.isa.available import used_features

    asked: dict[Elements, bool] = {"integers": integers, "bfloat16": bfloat16}
    target = tvm_target(description if description["kind"] == "llvm" else description["host"])
    return used_features(target, *(elements for elements, needed in asked.items() if needed))


def _cuda(given: dict[str, Any], threads: int) -> dict[str, Any]:
    devices = cuda_devices()
    arch = devices[0].arch if devices else DEFAULT_CUDA_ARCH
    complete = {"arch": arch, **_CUDA_LIMITS, "host": _cpu({"kind": "llvm"}, threads), **given}
    if variant := _ARCH_VARIANT.fullmatch(str(complete["arch"])):
        complete["arch"] = variant[1]
    return complete
