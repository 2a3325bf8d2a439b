"""TVM is loaded with the intrinsics of a target, and leaves Python as it was."""

from __future__ import annotations

import inspect

from autotune.tvm_backend.load import load_tvm


def test_the_intrinsics_of_cuda_are_there_and_stacks_have_their_source_again() -> None:
    load_tvm("cuda")
    from tvm.s_tir import TensorIntrin

    assert TensorIntrin.get("wmma_sync_16x16x16_f16f16f32") is not None
    assert inspect.stack()[0].code_context
