"""Turn an imported model into fused tensor programs. `submit` and `export` run exactly the same passes."""

from __future__ import annotations

from functools import partial
from typing import Any

from autotune.storage.formats import Precision

_CUDA_GRAPH = "relax.backend.use_cuda_graph"


def prepare(
    module: Any,
    target: Any,
    *,
    winograd: bool = False,
    precision: Precision = "fp32",
) -> Any:
    """Fold constants and batch normalisation, choose layouts, lower to TIR and fuse.

    `submit` extracts tasks from the tensor programs of the result, and `export` applies schedules to them. So the
    passes are deterministic: the same model, target and options give structurally equal programs.

    Args:
        module: The imported model.
        target: The target.
        winograd: Whether to use Winograd's algorithm for the 3x3 convolutions that it is expected to make faster. It is
            used on CPUs only.
        precision: In what convolutions and products are computed; `fp16` for GPUs only.

    Returns:
        The module with its tensor programs.
    """
    import tvm
    from tvm import relax

    from autotune.tvm_backend.integer.replace import integer_kernels
    from autotune.tvm_backend.passes.constants import fold_constants
    from autotune.tvm_backend.passes.embeddings import read_rows
    from autotune.tvm_backend.passes.fold_scale import fold_scales
    from autotune.tvm_backend.passes.half import half_precision
    from autotune.tvm_backend.passes.in_place import place_parts
    from autotune.tvm_backend.passes.layout import pack_layouts
    from autotune.tvm_backend.passes.matmul import pack_products
    from autotune.tvm_backend.passes.reshape import sink_reshapes
    from autotune.tvm_backend.passes.rows import replace_row_operators
    from autotune.tvm_backend.passes.unread_pixels import drop_unread_pixels
    from autotune.tvm_backend.passes.winograd import winograd_pays
    from autotune.tvm_backend.target import vector_registers

    passes = relax.transform
    with target, tvm.transform.PassContext(opt_level=3):
        module = integer_kernels(module, target)  # first: it reads what becomes folded constants
        simplify = [passes.DecomposeOpsForInference(), passes.CanonicalizeBindings()]
        module = fold_constants(tvm.transform.Sequential([*_dispatch(target), *simplify])(module))
        module = drop_unread_pixels(fold_scales(sink_reshapes(read_rows(module))))
        if target.kind.name == "llvm":
            registers = vector_registers(target)
            pays = partial(winograd_pays, vector=registers[0]) if winograd else None
            module = pack_products(pack_layouts(module, winograd=pays, registers=registers))
            module = place_parts(replace_row_operators(sink_reshapes(module)))
        elif precision == "fp16":
            module = half_precision(module)
        lower = [
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(["main"]),
        ]
        return tvm.transform.Sequential(lower)(module)


def unlowered(module: Any) -> list[str]:
    """Return the operators of a prepared module that TVM could not lower, because it knows no shapes for them.

    The module cannot be compiled then.

    Args:
        module: What `prepare` returned.
    """
    from autotune.tvm_backend.passes.rewrite import op_name

    calls = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    found = {op_name(call) for call in calls if op_name(call) and call.op.get_attr("FLegalize") is not None}
    return sorted(name.removeprefix("relax.") for name in found)


def finish(module: Any, target: Any, *, cuda_graph: bool = False) -> Any:
    """Lower a module with scheduled tensor programs to what TVM's virtual machine runs.

    Args:
        module: The module.
        target: The target.
        cuda_graph: Whether kernels that neither read an input nor write an output are launched together, as a CUDA
            graph. The first call of the model records it.
    """
    import tvm
    from tvm import relax

    from autotune.tvm_backend.passes.in_place import share_buffers

    passes = relax.transform
    calls = [
        passes.RewriteDataflowReshape(),
        passes.ToNonDataflow(),
        passes.RemovePurityChecking(),
        passes.CallTIRRewrite(),
    ]
    lower = [
        passes.StaticPlanBlockMemory(),
        *([passes.RewriteCUDAGraph()] if cuda_graph else []),
        passes.LowerAllocTensor(),
        passes.KillAfterLastUse(),
        passes.LowerRuntimeBuiltin(),
        passes.ComputePrimValue(),
        passes.VMShapeLower(),
        passes.AttachGlobalSymbol(),
    ]
    with target, tvm.transform.PassContext(opt_level=3, config={_CUDA_GRAPH: cuda_graph}):
        return tvm.transform.Sequential(lower)(share_buffers(tvm.transform.Sequential(calls)(module)))


def _dispatch(target: Any) -> list[Any]:
    from tvm import relax

    try:
        return list(relax.pipeline.library_dispatch_passes(target))
    except (ValueError, AttributeError):
        return []
