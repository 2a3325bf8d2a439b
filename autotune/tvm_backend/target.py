"""Targets: from what the user typed to a complete TVM target and the key of its tuning logs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from autotune.errors import BadTarget
from autotune.machine import cpu_model, cuda_devices
from autotune.tvm_backend.load import TESTED

DEFAULT_CUDA_ARCH = "sm_80"
_CUDA_LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "registers_per_block": 65536,
    "thread_warp_size": 32,
}


@dataclass(frozen=True)
class ResolvedTarget:
    """A target that TVM accepts, and the key that its tuning logs share.

    The key covers all that a measured time depends on besides the task: target, device model, TVM version.
    """

    description: dict[str, Any]
    key: str


def target_kind(text: str) -> str:
    """`llvm` or `cuda`, without importing TVM.

    Raises:
        BadTarget: the text names neither.
    """
    kind = _parse(text).get("kind")
    if kind not in ("llvm", "cuda"):
        raise BadTarget(f"target {text!r}: kind is {kind!r}; give llvm, cuda or a JSON object with such a kind")
    return str(kind)


def resolve_target(text: str, threads: int) -> ResolvedTarget:
    """Complete `llvm`, `cuda` or a JSON object with what this machine has.

    Args:
        threads: CPU threads that a compiled model will use.

    Raises:
        BadTarget: TVM does not know the target or one of its options.
    """
    import tvm

    target_kind(text)
    given = _parse(text)
    complete = _cpu(given, threads) if given["kind"] == "llvm" else _cuda(given, threads)
    try:
        tvm.target.Target(complete)
    except (ValueError, TypeError, tvm.error.InternalError) as error:
        raise BadTarget(f"target {text!r}: {str(error).splitlines()[0]}") from error
    return ResolvedTarget(complete, _key(complete))


def _parse(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadTarget(f"target {text!r} is not valid JSON: {error}") from error
    return dict(parsed)


def _cpu(given: dict[str, Any], threads: int) -> dict[str, Any]:
    from tvm.target import codegen

    return {"mcpu": str(codegen.llvm_get_system_cpu()), "num-cores": threads, **given}


def _cuda(given: dict[str, Any], threads: int) -> dict[str, Any]:
    devices = cuda_devices()
    arch = devices[0].arch if devices else DEFAULT_CUDA_ARCH
    return {"arch": arch, **_CUDA_LIMITS, "host": _cpu({"kind": "llvm"}, threads), **given}


def _key(target: dict[str, Any]) -> str:
    name = str(target.get("mcpu") or target.get("arch") or "any")
    device = cpu_model() if target["kind"] == "llvm" else _gpu_model(str(target.get("arch")))
    whole = json.dumps([target, device, TESTED], sort_keys=True)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:10]
    return f"{target['kind']}-{re.sub(r'[^A-Za-z0-9_]+', '_', name)}-{digest}"


def _gpu_model(arch: str) -> str:
    return next((device.name for device in cuda_devices() if device.arch == arch), arch)
