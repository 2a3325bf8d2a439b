"""Maxima and averages over windows of quantised images."""

from __future__ import annotations

from math import prod

import numpy as np

from autotune.tvm_backend.expressions import static_shape
from autotune.tvm_backend.operators import byte_images as byte_kernels
from autotune.tvm_backend.operators.element_types import BYTES
from autotune.tvm_backend.packing.image_operators import Pool
from autotune.tvm_backend.packing.integer_graph import MAX_BYTE, IntegerGraph, floats, limits_of
from autotune.tvm_backend.packing.quantised_tensors import Forms, Quantised
from autotune.tvm_backend.types import Expr


def pool(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute a maximum over windows, or an average over windows without padding or over whole images."""
    kind = Pool.of(quantised.value)
    data = graph.quantised_operand(quantised.value.args[0])
    if kind is None or data is None:
        return None
    if not kind.largest:
        return _averaged(graph, kind, data, quantised)
    if graph.quant_params(data) != quantised.quant_params or quantised.limits != (0, MAX_BYTE):
        return None
    return Forms(nhwc_blocked=kind.call(graph, BYTES, graph.image(data)))


def _averaged(graph: IntegerGraph, pool: Pool, data: Expr, quantised: Quantised) -> Forms:
    given = graph.quant_params(data)
    result = quantised.quant_params
    count = prod(pool.kernel)
    factor = given.scale / (result.scale * np.float32(count))
    image = graph.image(data)
    constants = [floats([given.zero * count, factor]), limits_of(result, quantised.limits)]
    program = byte_kernels.average_kernel(static_shape(image), pool.kernel, pool.window)
    made = pool.call(graph, BYTES, image, program, constants)
    return (
        Forms(nhwc_blocked=made) if len(quantised.shape) == 4 else Forms(row_major=graph.as_rows(made, quantised.shape))
    )
