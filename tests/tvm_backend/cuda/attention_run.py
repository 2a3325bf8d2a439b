"""Run attention as one kernel on random numbers, and say how far it is from NumPy.

    python attention_run.py FOLDER DTYPE,JOINED,ZEROS,BATCH,HEADS,QUERIES,KEYS,SIZE[,BIAS...]...

JOINED is 1 where keys and values are parts of one tensor, and 0 where they are tensors of their own. BIAS is the shape
of what is added to the scores, of four numbers. ZEROS is 1 where the first query has no keys, and so zeros as its
result. Prints the largest error of each.
"""

from __future__ import annotations

import sys

from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import tvm  # noqa: E402

from autotune.machine.gpus import cuda_devices  # noqa: E402
from autotune.tvm_backend.cuda.attention_kernel import AttentionShape, RowPart  # noqa: E402
from autotune.tvm_backend.kernels.build_kernel import build_library  # noqa: E402
from autotune.tvm_backend.target import resolve_target, tvm_target  # noqa: E402

ARCH = cuda_devices()[0].arch
TARGET = tvm_target(resolve_target(f'{{"kind": "cuda", "arch": "{ARCH}"}}', 1).description)
MASKED = -3.4e38


def wanted(q, k, v, bias, scale):
    """What NumPy makes of it."""
    q, k, v = (item.astype(np.float32).transpose(0, 2, 1, 3) for item in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * scale + bias
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = np.nan_to_num(powers / powers.sum(-1, keepdims=True))
    return (weights @ v).transpose(0, 2, 1, 3)


def main(library, dtype, joined, zeros, *numbers):
    batch, heads, queries, keys, size, *added = map(int, numbers)
    element = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(0, 1, (batch, rows, heads, size)).astype(element) for rows in (queries, keys, keys))
    bias = rng.normal(0, 1, added).astype("float32")
    if added and added[-1] > 1:
        bias[..., added[-1] // 2 :] = MASKED  # and the first tile of keys of the last query
        bias[..., -1, : added[-1] // 3] = MASKED
        bias[..., -1, added[-1] // 3 :] = 0
    if added and added[-2] > 1:
        bias[..., 0, :] = -np.inf if int(zeros) else np.finfo("float32").min  # no keys, or all keys alike
    width = heads * size
    parts = (RowPart(width), RowPart(2 * width), RowPart(2 * width, width)) if int(joined) else ()
    shape = AttentionShape(batch, heads, queries, keys, size, size**-0.5, tuple(added), parts, zeros == "1")
    assert shape.fits(TARGET)
    program = shape.program(dtype, TARGET)
    build_library(tvm.IRModule({"main": program.with_attr("global_symbol", "main")}), TARGET, library)
    rows = [item.reshape(batch, -1, width) for item in (q, k, v)]
    operands = [rows[0], *[np.concatenate(rows[1:], axis=-1)] * 2] if parts else rows
    out = tvm.runtime.tensor(np.full((batch, queries, heads, size), 99).astype(element), tvm.cuda(0))
    inputs = [tvm.runtime.tensor(item, tvm.cuda(0)) for item in (*operands, *([bias] if added else []))]
    tvm.runtime.load_module(library)["main"](*inputs, out)
    error = np.abs(out.numpy().astype(np.float32) - wanted(q, k, v, bias if added else 0, size**-0.5)).max()
    sys.stdout.write(f"{error:.1e}\n")


for number, words in enumerate(sys.argv[2:]):
    main(f"{sys.argv[1]}/{number}.so", *words.split(","))
