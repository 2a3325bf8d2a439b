"""Print a network as C++: `network.cpp` with its memory and blocks, and `model.h` with its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.options import InputSpec
from autotune.tvm_backend.export.writing.cpp_program import text_literal
from autotune.tvm_backend.export.writing.planned_network import (
    FusedBlock,
    Network,
    PlacedTensor,
    element_bytes,
    refused,
)

_CPP_TYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: name for name in ("float16", "float32", "float64", "bfloat16")},
    "bool": "boolean",
}
_MODEL_H = """\
// The inputs and outputs of the model {name}. Made by autotune {version}.
#pragma once
#include <cstddef>
#include <cstdint>

namespace model {{

struct TensorInfo {{
  const char* name;
  const char* type;
  size_t bytes;
  int64_t rows;  // of the table that it is an index into; 0 if it is none
  int dimensions;
  int64_t shape[{most}];
}};

inline constexpr char kName[] = {quoted};
inline constexpr char kInstructions[] = {instructions};  // that the CPU must have, as the kernel names them
inline constexpr int kInputCount = {input_count}, kOutputCount = {output_count};
inline constexpr TensorInfo kInputs[] = {{{inputs}}};
inline constexpr TensorInfo kOutputs[] = {{{outputs}}};

void load(const char* weights_file);  // once, before anything else
void* input(int index);               // where to write an input; it stays there between runs
void run();
const void* output(int index);        // valid until the next run

}}  // namespace model
"""
_NETWORK_CPP = """\
// The model {name}, block by block. Made by autotune {version}, and yours to edit.
//
// A block is one fused operator: a compiled kernel with its weights, its buffers and its number of threads. Change the
// threads of a block, build again, and `main --repeat 100 --blocks` shows what it brings. A buffer's place is an offset
// into one arena. Buffers that are not in use at the same time share it, so a block that is moved must still find what
// it reads; give a buffer an offset of its own at the end of the arena where it does not.
#include <cstdlib>
#include <new>

#include "machine.h"
#include "model.h"
#include "shim.h"

extern "C" {{  // the kernels in kernels.o
{kernels}}}

namespace {{

constexpr int kThreads = {threads};  // of a block whose kernel has a parallel loop
constexpr size_t kArenaBytes = {arena_bytes};
constexpr size_t kWeightsBytes = {weights_bytes};
constexpr char kWeightsId[] = {weights_id};

struct Network {{
  explicit Network(const char* weights_file) : weights(weights_file, kWeightsBytes, kWeightsId) {{}}

  // ---- The buffers

  Arena arena{{kArenaBytes}};

{buffers}
  // ---- The blocks, each with its weights, its number of threads and its tensors; the results come last

  Weights weights;

{blocks}  // ---- The order in which they run

  void run() {{
{order}  }}
}};

Network* network = nullptr;

}}  // namespace

namespace model {{

void load(const char* weights_file) {{
  machine::check(kInstructions);
  network = new (std::malloc(sizeof(Network))) Network(weights_file);
}}

void run() {{ network->run(); }}

void* input(int index) {{
  void* const data[] = {{{input_data}}};
  return data[index];
}}

const void* output(int index) {{
  const void* const data[] = {{{output_data}}};
  return data[index];
}}

}}  // namespace model
"""


def model_header(
    name: str,
    inputs: Sequence[InputSpec],
    outputs: Sequence[InputSpec],
    rows: Mapping[str, int],
    instructions: Sequence[str],
    version: str,
) -> str:
    """Return the text of `model.h`.

    Args:
        inputs: The inputs, in the order of the model.
        outputs: The outputs, in the order of the model.
        rows: For inputs that are indices, the number of rows of the table, by the name of the input.
        instructions: What the CPU must have, as the kernel names it.
        version: The version of autotune.
    """
    return _MODEL_H.format(
        name=name,
        version=version,
        quoted=text_literal(name),
        instructions=text_literal(" ".join(instructions)),
        most=max(1, *(len(item.shape) for item in (*inputs, *outputs))),
        input_count=len(inputs),
        output_count=len(outputs),
        inputs=",".join(_info(item, rows.get(item.name, 0)) for item in inputs) or "{}",
        outputs=",".join(_info(item, 0) for item in outputs),
    )


def network_source(
    name: str, network: Network, names: Mapping[str, str], threads: int, weights: tuple[int, str], version: str
) -> str:
    """Return the text of `network.cpp`.

    Args:
        name: The name of the model.
        names: What the model calls its inputs and outputs, by the names of the tensors.
        threads: How many threads a block uses.
        weights: The size of the file of weights, and its id.
        version: The version of autotune.

    Raises:
        ModelError: A tensor has elements of a type that the program does not know.
    """
    kernels = dict.fromkeys(block.kernel for block in network.blocks)
    return _NETWORK_CPP.format(
        name=name,
        version=version,
        kernels="".join(f"Kernel __tvm_ffi_{kernel};\n" for kernel in kernels),
        threads=threads,
        arena_bytes=network.arena_bytes,
        weights_bytes=weights[0],
        weights_id=text_literal(weights[1]),
        buffers="".join(_buffer(item, names.get(item.name, "")) for item in (*network.inputs, *network.buffers)),
        blocks="".join(_configured(network)),
        order="".join(f"    block{index}.run();\n" for index in range(len(network.blocks))),
        input_data=", ".join(f"network->{item.name}.data()" for item in network.inputs) or "nullptr",
        output_data=", ".join(f"network->{output}.data()" for output in network.outputs),
    )


def _info(spec: InputSpec, rows: int) -> str:
    size = element_bytes(spec.dtype)
    for length in spec.shape:
        size *= length
    shape = ", ".join(map(str, spec.shape))
    name = text_literal(spec.name)
    return f"\n    {{{name}, {text_literal(spec.dtype)}, {size}, {rows}, {len(spec.shape)}, {{{shape}}}}}"


def _buffer(tensor: PlacedTensor, called: str) -> str:
    return f"  Tensor {tensor.name} = arena.at({_place(tensor)});{called and f'  // {called}'}\n"


def _place(tensor: PlacedTensor) -> str:
    return f"{tensor.offset}, {_cpp_type(tensor.dtype)}, {_shape(tensor)}"


def _cpp_type(dtype: str) -> str:
    try:
        return _CPP_TYPES[dtype]
    except KeyError:
        raise refused(f"it has tensors of {dtype}") from None


def _shape(tensor: PlacedTensor) -> str:
    return f"{{{', '.join(map(str, tensor.shape))}}}"


def _configured(network: Network) -> Iterator[str]:
    """Yield the declarations of the blocks, each after the weights and views that it is the first to use."""
    weights = {item.name: item for item in network.weights}
    views = {item.name: item for item in network.views}
    for index, block in enumerate(network.blocks):
        for name in block.arguments:
            yield from _introduced(name, weights, views)
        yield _block(index, block)
    for name in network.outputs:
        yield from _introduced(name, weights, views)


def _introduced(name: str, weights: dict[str, PlacedTensor], views: dict[str, PlacedTensor]) -> Iterator[str]:
    """Yield the declaration of a weight or a view if it has none yet, and before it that of what a view shows."""
    if weight := weights.pop(name, None):
        yield f"  Tensor {name} = weights.at({_place(weight)});\n"
    if view := views.pop(name, None):
        yield from _introduced(view.viewed, weights, views)
        yield f"  Tensor {name} = {view.viewed}.reshaped({_shape(view)});\n"


def _block(index: int, block: FusedBlock) -> str:
    tensors = ", ".join(f"&{name}" for name in block.arguments)
    threads = block.threads or "kThreads"
    return f"  Block block{index}{{KERNEL({block.kernel}), {threads}, {{{tensors}}}}};\n\n"
