"""Turn an imported model into fused tensor programs. `submit` and `export` run exactly the same passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import tvm
from tvm import relax
from tvm.relax import transform

from autotune.network_plan.plan import NOTHING, Plan
from autotune.options import Activations, Precision
from autotune.tvm_backend.cuda import tf32
from autotune.tvm_backend.expressions import bindings_of, op_name
from autotune.tvm_backend.graph.blocks import fuse, limit_threads, name_operators
from autotune.tvm_backend.graph.concurrent import groups_beside, join_kernels
from autotune.tvm_backend.graph.constants import fold_constants
from autotune.tvm_backend.graph.decomposed_attention import compose_attention
from autotune.tvm_backend.graph.embeddings import read_rows, slice_rows
from autotune.tvm_backend.graph.fold_scale import fold_scales
from autotune.tvm_backend.graph.fused_attention import fuse_attention
from autotune.tvm_backend.graph.gpu_precision import (
    bfloat16,
    channels_last,
    half_precision,
    round_norms,
    weights_by_terms,
)
from autotune.tvm_backend.graph.in_place import place_parts, share_buffers
from autotune.tvm_backend.graph.joined_modules import Joiner
from autotune.tvm_backend.graph.joined_projections import join_projections
from autotune.tvm_backend.graph.one_arena import place_activations
from autotune.tvm_backend.graph.one_recording import in_one_recording
from autotune.tvm_backend.graph.open_loops import bodies_of, without_bodies
from autotune.tvm_backend.graph.permutations import sink_permutations
from autotune.tvm_backend.graph.reshape import sink_reshapes
from autotune.tvm_backend.graph.row_operators import name_layer_norms, replace_row_operators
from autotune.tvm_backend.graph.run_order import order_kernels
from autotune.tvm_backend.graph.running_sums import replace_running_sums
from autotune.tvm_backend.graph.signals import signals_as_images
from autotune.tvm_backend.graph.transposed_convolutions import split_phases
from autotune.tvm_backend.graph.unread_pixels import drop_unread_pixels
from autotune.tvm_backend.isa.available import vector_registers
from autotune.tvm_backend.operators.few_bit_product import for_target
from autotune.tvm_backend.operators.winograd import winograd_pays
from autotune.tvm_backend.packing.bfloat16_network import bfloat16_kernels
from autotune.tvm_backend.packing.blocked_images import pack_layouts
from autotune.tvm_backend.packing.gpu_integers import gpu_integers
from autotune.tvm_backend.packing.integer_network import integer_kernels
from autotune.tvm_backend.packing.matrices import pack_products
from autotune.tvm_backend.packing.recurrent_layers import pack_recurrent_layers
from autotune.tvm_backend.types import IRModule, Pass, Target

_CUDA_GRAPH = "relax.backend.use_cuda_graph"

# A pass: ours are functions, TVM's are objects that are called like them.
Rewrite = Callable[[IRModule], IRModule]


def _passes(
    target: Target, winograd: bool, precision: Precision, activations: Activations, plan: Plan, *, in_loop: bool
) -> Sequence[tuple[bool, Rewrite]]:
    """Return the passes in order, each with whether it applies."""
    cpu = target.kind.name == "llvm"
    on_tensor_cores = "" if cpu else precision
    tensor_float = on_tensor_cores == "tf32"
    in_halves = on_tensor_cores in ("fp16", "bf16")
    registers = vector_registers(target)
    pays = partial(winograd_pays, vector=registers[0]) if winograd else None
    threads = int(target.attrs.get("num-cores") or 1) if cpu else 0
    return [
        (True, slice_rows),  # a gather of rows that are always the same is fused with nothing
        (cpu, partial(for_target, target=target)),  # products of packed weights use its instructions
        (True, name_layer_norms),  # before what they consist of is moved
        (True, sink_permutations),  # changes between channels second and channels last meet and vanish
        # It reads what becomes folded constants.
        (True, partial(integer_kernels, target=target, activations=activations)),
        (not cpu, gpu_integers),  # as does this
        # Weights in blocks of vectors.
        (cpu, partial(pack_recurrent_layers, registers=registers, cores=threads, target=target)),
        (cpu, replace_running_sums),
        *((True, item) for item in _dispatch(target)),  # operators for which the target has a library
        (True, transform.DecomposeOpsForInference()),  # batch normalisation becomes arithmetic
        (True, transform.CanonicalizeBindings()),
        (True, fold_constants),
        (cpu, split_phases),  # transposed convolutions become convolutions of as many pixels as there are
        (cpu, signals_as_images),  # a convolution over a signal is one over an image of height one
        (True, read_rows),  # a product with a one-hot encoding becomes a gather
        (True, sink_reshapes),  # an activation is fused to the product before it, with no reshape between them
        (True, fold_scales),  # a multiplication by a constant goes into the weights before it
        (True, drop_unread_pixels),  # a convolution before one with strides takes larger strides itself
        (in_halves, compose_attention),
        (in_halves, relax.transform.EliminateCommonSubexpr()),
        (in_halves, join_projections),  # whose parts attention reads where they lie
        (True, name_operators),  # from here on a plan can speak of them
        (cpu and precision == "bf16", partial(bfloat16_kernels, target=target)),  # what is left stays in fp32
        (cpu, partial(sink_permutations, ties=False)),  # again, for packed images are permuted
        (cpu, partial(pack_layouts, winograd=pays, registers=registers, plan=plan)),  # channels in blocks of a vector
        (cpu, partial(pack_products, plan=plan)),  # constant matrices in blocks of a vector
        (cpu, sink_reshapes),  # again, for `pack_products` makes reshapes
        (cpu, replace_row_operators),  # softmax and layer normalisation, scheduled
        (cpu and not in_loop, place_parts),  # concatenations and slices without copies
        (on_tensor_cores == "fp16", half_precision),  # convolutions and products
        (on_tensor_cores == "bf16", bfloat16),
        (in_halves, partial(fuse_attention, target=target)),
        (in_halves, round_norms),
        (tensor_float, channels_last),
        (tensor_float, weights_by_terms),
        (True, transform.LegalizeOps()),  # operators become tensor programs
        (True, transform.AnnotateTIROpPattern()),
        (True, transform.FoldConstant()),
        (True, transform.DeadCodeElimination(["main"])),
        (True, partial(fuse, plan=plan)),
        (True, transform.FuseTIR()),
        (tensor_float, tf32.allow),
        (True, partial(limit_threads, plan=plan, most=threads)),
        (True, transform.DeadCodeElimination(["main"])),
    ]


def prepare(
    module: IRModule,
    target: Target,
    *,
    winograd: bool = False,
    precision: Precision = "fp32",
    activations: Activations = "fp32",
    plan: Plan = NOTHING,
    memory_mb: float | None = None,
) -> IRModule:
    """Fold constants and batch normalisation, choose layouts, lower to TIR and fuse.

    `submit` extracts tasks from the tensor programs of the result, and `export` applies schedules to them. So the
    passes are deterministic: the same model, target and options give structurally equal programs.

    Args:
        module: The imported model.
        winograd: Whether to use Winograd's algorithm for the 3x3 convolutions that it is expected to make faster. It is
            used on CPUs only.
        precision: In what convolutions and products are computed; `fp16` and `tf32` for GPUs only.
        activations: What activations are where packed weights multiply them; `int8` for CPUs only.
        plan: Decides about the operators that it names. The rules decide about the others.
        memory_mb: How much memory activations may take, in megabytes; None for any.

    Returns:
        The module with its tensor programs.

    Raises:
        BadInput: The model cannot be computed as the plan wants, or in so little memory.
    """
    choices = target, winograd, precision, activations
    joiner = Joiner()
    with target, tvm.transform.PassContext(opt_level=3):
        whole = _passed(without_bodies(module), _passes(*choices, plan, in_loop=False))
        joiner.add("main", order_kernels(whole, plan, memory_mb))
        for name, body in bodies_of(module).items():
            joiner.add(name, _passed(body, _passes(*choices, NOTHING, in_loop=True)))
    return joiner.module()


def _passed(module: IRModule, passes: Sequence[tuple[bool, Rewrite]]) -> IRModule:
    for applies, rewrite in passes:
        module = rewrite(module) if applies else module
    return module


def _dispatch(target: Target) -> list[Pass]:
    try:
        return list(relax.pipeline.library_dispatch_passes(target))
    except (ValueError, AttributeError):
        return []


def unlowered(module: IRModule) -> list[str]:
    """Return the operators of a prepared module that TVM could not lower, because it knows no shapes for them.

    The module cannot be compiled then.

    Args:
        module: What `prepare` returned.
    """
    functions = [item for item in module.functions.values() if isinstance(item, relax.Function)]
    calls = [binding.value for function in functions for binding in bindings_of(function)]
    names = {op_name(call) for call in calls if op_name(call) and call.op.get_attr("FLegalize") is not None}
    return sorted(name.removeprefix("relax.") for name in names)


def finish(module: IRModule, target: Target, *, cuda_graph: bool = False) -> IRModule:
    """Lower a module with scheduled tensor programs to what TVM's virtual machine runs.

    Args:
        cuda_graph: Whether kernels are launched together, as a CUDA graph, but for the first and the last ones, which
            read inputs and write outputs. The first call of the model records it.
    """
    passes: list[Rewrite] = [
        transform.RewriteDataflowReshape(),
        *([in_one_recording] if cuda_graph else []),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        share_buffers,  # what `place_parts` has found gets its places
        partial(join_kernels, groups=groups_beside(module), target=target),  # before they can share memory
        transform.StaticPlanBlockMemory(),
        *([transform.RewriteCUDAGraph()] if cuda_graph else []),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
        *([place_activations] if target.kind.name == "llvm" else []),
    ]
    with target, tvm.transform.PassContext(opt_level=3, config={_CUDA_GRAPH: cuda_graph}):
        for rewrite in passes:
            module = rewrite(module)
    return module
