"""Read and write tokens with one runtime, and print what it took as JSON. It needs NumPy and that runtime only.

    python scripts/bench/language_model_process.py RUNTIME MODEL THREADS CONTEXT [FILE]

`bench_language_models.py` starts it, with the Python that has the runtime: `ours`, for which MODEL is an export,
`llama_cpp` or `ik_llama_cpp`, for which it is a GGUF file, or `onnxruntime`, for which it is what
`scripts/models/gguf_to_onnx.py` wrote. With a file in JSON it times nothing: of `text`, a list of
tokens, it prints the perplexity, and of `prompts`, several such lists, what `greedy` returns.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PASTS = (256, 1500)  # tokens before those that are written
PROMPT = 512  # tokens that are read at once
WRITTEN = 32
FOLLOWING = 16  # tokens that are compared
_LIKELY = 20  # tokens whose logits are kept
_PROMPTS = 3
_SEED = 2026

Read = Callable[[list[int], int], np.ndarray]  # tokens, and how many were read before, to the logits of the next


def main() -> None:
    runtime, model, threads, context, *asked = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads
    began = time.perf_counter()
    load = {"ours": _ours, "onnxruntime": _onnxruntime}.get(runtime) or _llama(runtime)
    read, vocabulary = load(model, int(threads), int(context))
    if asked:
        content = json.loads(Path(asked[0]).read_text())
        print(json.dumps(perplexity(read, content["text"]) if "text" in content else greedy(read, content["prompts"])))
        return
    figures = {"load_ms": (time.perf_counter() - began) * 1e3, **measured(read, vocabulary)}
    figures["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(figures))


def measured(read: Read, vocabulary: int) -> dict[str, Any]:
    """Return the milliseconds of a prompt and of a token, and the logits after the prompt."""
    tokens = drawn_tokens(vocabulary)
    logits = read(tokens[:PROMPT], 0)
    prompts = [timed(read, tokens[:PROMPT], 0) for _ in range(_PROMPTS)]
    figures: dict[str, Any] = {"prefill_512": statistics.median(prompts), "logits": logits.tolist()}
    for past in PASTS:
        read(tokens[:past], 0)
        read(tokens[:1], past)
        written = [timed(read, tokens[:1], past + 1 + count) for count in range(WRITTEN)]
        figures[f"decode_{past}"] = statistics.median(written)
    return figures


def perplexity(read: Read, tokens: list[int]) -> float:
    """Return the exponential of the mean surprise, in nats, at each token after the first."""
    surprises = []
    for past, (token, following) in enumerate(itertools.pairwise(tokens)):
        logits = read([token], past).astype(np.float64)
        surprises.append(np.logaddexp.reduce(logits) - logits[following])
    return float(np.exp(np.mean(surprises)))


def greedy(read: Read, prompts: list[list[int]]) -> list[list[list[tuple[int, float]]]]:
    """Return what follows each prompt if the most likely token is taken each time.

    Returns:
        For each prompt and place the most likely tokens with their logits, the one that is taken first.
    """
    written = []
    for prompt in prompts:
        logits = read(prompt, 0)
        places: list[list[tuple[int, float]]] = []
        for count in range(FOLLOWING):
            likely = np.argsort(-logits, kind="stable")[:_LIKELY]
            places.append([(int(token), float(logits[token])) for token in likely])
            logits = read([places[-1][0][0]], len(prompt) + count)
        written.append(places)
    return written


def drawn_tokens(vocabulary: int) -> list[int]:
    """Return random tokens, the same each time."""
    return [int(token) for token in np.random.default_rng(_SEED).integers(0, vocabulary, max(PASTS))]


def timed(read: Read, tokens: list[int], past: int) -> float:
    began = time.perf_counter()
    read(tokens, past)
    return (time.perf_counter() - began) * 1e3


def _ours(model: str, threads: int, context: int) -> tuple[Read, int]:
    import autotune

    loaded = autotune.load(Path(model), threads=threads)
    state = loaded.state()

    def read(tokens: list[int], past: int) -> np.ndarray:
        state.length = past
        return np.asarray(state.step(tokens))

    return read, loaded.vocabulary


def _onnxruntime(model: str, threads: int, _context: int) -> tuple[Read, int]:
    """ONNX Runtime, which writes what it keeps of tokens into the memory where it reads it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for item in session.get_inputs():
        if item.name.startswith("past_"):
            kept = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(item.shape, np.float32))
            binding.bind_ortvalue_input(item.name, kept)
            binding.bind_ortvalue_output(item.name.removeprefix("past_"), kept)
    vocabulary = int(session.get_outputs()[0].shape[-1])
    logits = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, vocabulary), np.float32))
    binding.bind_ortvalue_output("logits", logits)

    def read(tokens: list[int], past: int) -> np.ndarray:
        length = past + len(tokens)
        binding.bind_cpu_input("ids", np.array([tokens], np.int64))
        binding.bind_cpu_input("last", np.array([length - 1], np.int32))
        binding.bind_cpu_input("total", np.array([length], np.int32))
        session.run_with_iobinding(binding)
        return np.asarray(logits.numpy()).ravel()

    return read, vocabulary


def _llama(package: str) -> Callable[[str, int, int], tuple[Read, int]]:
    """llama.cpp or its fork, by its C interface, with all that is fast in it."""

    def load(model: str, threads: int, context: int) -> tuple[Read, int]:
        c = importlib.import_module("ik_llama_cpp._ctypes_api" if package == "ik_llama_cpp" else package)
        c.llama_backend_init()
        loaded = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
        options = c.llama_context_default_params()
        options.n_ctx = options.n_batch = context
        options.n_threads = options.n_threads_batch = threads
        if hasattr(options, "flash_attn"):  # the fork; llama.cpp chooses it by itself
            options.flash_attn = True
        handle = c.llama_init_from_model(loaded, options)
        vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(loaded))
        batch = c.llama_batch_init(context, 0, 1)

        def read(tokens: list[int], past: int) -> np.ndarray:
            if past == 0:
                _forget(c, handle)
            _fill(batch, tokens, past)
            if status := c.llama_decode(handle, batch):
                raise RuntimeError(f"{package} failed with {status}")
            return np.ctypeslib.as_array(c.llama_get_logits_ith(handle, len(tokens) - 1), (vocabulary,)).copy()

        return read, vocabulary

    return load


def _forget(c: Any, handle: Any) -> None:
    if hasattr(c, "llama_kv_cache_clear"):
        c.llama_kv_cache_clear(handle)
    else:
        c.llama_memory_clear(c.llama_get_memory(handle), True)


def _fill(batch: Any, tokens: list[int], past: int) -> None:
    """Make a batch of tokens of one text, of which the logits of the last are wanted."""
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index] = token
        batch.pos[index] = past + index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = index == len(tokens) - 1


if __name__ == "__main__":
    main()
