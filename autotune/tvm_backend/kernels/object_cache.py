"""Compile the kernels of a model to an object file each, and keep these: one that was compiled before is only linked.

An object is found by a digest of the scheduled program with its name, the target, the versions of TVM's packages and
all files of our compiler. So what was made by another compiler is never found.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm import tirx

from autotune.errors import WorkerError
from autotune.processes.isolate import isolated_at_once
from autotune.storage.kept_objects import KeptObjects
from autotune.tvm_backend.codegen.lowering_passes import object_pipeline
from autotune.tvm_backend.compiler_digest import compiler_digest
from autotune.tvm_backend.kernels.build_kernel import compile_object
from autotune.tvm_backend.types import IRModule, PrimFunc, Target

_ANCHOR = "autotune_anchor"  # the kernel that is left in a module whose others are in objects
_BUILD_S = 600.0  # that a kernel may take


def kernel_objects(module: IRModule, target: Target, kept: KeptObjects, children: int = 0) -> dict[str, bytes]:
    """Return the object file of each tensor program of a lowered module, by its name.

    Args:
        target: The target, a CPU.
        kept: Where objects are looked for, and where those that are compiled go.
        children: How many processes compile at the same time; 0 to compile in this one.

    Raises:
        WorkerError: A kernel cannot be compiled in a process of its own.
        Exception: Without children, whatever TVM's lowering or code generation raises.
    """
    programs = {str(var.name_hint): item for var, item in module.functions.items() if isinstance(item, tirx.PrimFunc)}
    keys = {name: _key(program, target) for name, program in programs.items()}
    objects = {name: content for name, key in keys.items() if (content := kept.read(key)) is not None}
    missing = {name: program for name, program in programs.items() if name not in objects}
    for name, content in _compiled(missing, target, children).items():
        objects[name] = content
        kept.add(keys[name], content)
    if missing:
        kept.trim()
    return {name: objects[name] for name in programs}  # in one order, for it is that in which they are linked


def _key(program: PrimFunc, target: Target) -> str:
    inputs = [tvm.ir.save_json(program), json.dumps(target.export(), sort_keys=True, default=str), compiler_digest()]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()


def _compiled(programs: Mapping[str, PrimFunc], target: Target, children: int) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        # The names of kernels say what is fused, and may be too long for files.
        files = {name: Path(folder, f"{number}.o") for number, name in enumerate(programs)}

        def compile_one(name: str) -> None:
            compile_object(name, programs[name], target, files[name])

        if not children or len(programs) == 1:
            for name in programs:
                compile_one(name)
        else:
            for name, result in isolated_at_once(list(programs), lambda: compile_one, children, limit_s=_BUILD_S):
                if result.kind != "ok":
                    raise WorkerError(f"the kernel {name} cannot be compiled: {result.reason}")
        return {name: file.read_bytes() for name, file in files.items()}


def without_kernels(module: IRModule) -> IRModule:
    """Return a lowered module with one more tensor program, which is all that `linked_pipeline` compiles of it.

    TVM looks for kernels in the library that it loads only if it has compiled one of them.
    """
    anchor = tirx.PrimFunc([], tirx.Evaluate(tirx.IntImm("int32", 0))).with_attr("global_symbol", _ANCHOR)
    functions = {**dict(module.functions.items()), tvm.ir.GlobalVar(_ANCHOR): anchor}
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def linked_pipeline(target: Target) -> str:
    """Return the name under which TVM knows the passes for a module whose kernels are in objects."""
    return object_pipeline(
        target, "linked", lambda module: tvm.IRModule({_ANCHOR: module[_ANCHOR]}, attrs=module.attrs)
    )
