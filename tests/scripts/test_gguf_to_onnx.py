"""scripts/models/gguf_to_onnx: the decoder of a GGUF file as ONNX Runtime runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx

from autotune.tvm_backend.models.gguf.network import read_network
from autotune.tvm_backend.models.gguf.reference import DecoderReference, empty_cache


def test_onnx_runtime_reads_a_prompt_and_writes_a_token_as_numpy_does(
    load_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    make = load_script("make_gguf")
    make.write(tmp_path / "a.gguf", make.Shape(2, 64, 4, 2, 96, 300), "F32")
    network = read_network(tmp_path / "a.gguf")
    model = load_script("gguf_to_onnx").Decoder(network, 16).model()
    onnx.save(model, tmp_path / "a.onnx")
    read, vocabulary = load_script("language_model_process")._onnxruntime(str(tmp_path / "a.onnx"), 1, 16)
    assert vocabulary == 300
    reference = DecoderReference(network)
    cache = empty_cache(network.sizes, 16)
    for past, tokens in ((0, [3, 250, 7, 7, 11]), (5, [42])):
        right = reference.logits(np.array(tokens), past, *cache).ravel()
        np.testing.assert_allclose(read(tokens, past), right, rtol=1e-4, atol=1e-5)
