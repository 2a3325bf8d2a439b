"""Write `run.py` for a language model, which writes tokens with nothing but TVM's runtime and NumPy."""

from __future__ import annotations

import inspect
from typing import Any

from autotune.tvm_backend.export.generation import check_sampling, check_tokens, choose_token, plan_parts

_SCRIPT = '''"""Let {name} write. {made_by} {version}.

    python run.py --prompt "Once upon a time"     needs the package tokenizers
    python run.py --ids 1,2,3
"""
from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("TVM_NUM_THREADS", "{threads}")  # TVM's own default is half of the CPUs
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
import numpy as np
import tvm
from tvm import relax

FOLDER = Path(__file__).parent
FUNCTIONS = {functions}  # by how many tokens they read
CACHE = {cache}
VOCABULARY = {vocabulary}
CONTEXT = {context}
END = {end}
{machine}

{shared}

class Model:
    """The model, and what it has read."""

    def __init__(self):
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(FOLDER / "{library}")), tvm.cpu(0))
        self.functions = {{size: machine[name] for size, name in FUNCTIONS.items()}}
        self.cache = [tvm.runtime.tensor(np.zeros(shape, dtype)) for shape, dtype in CACHE]
        self.length = 0

    def step(self, ids):
        """Read tokens, and return the logits of the next one."""
        check_tokens(ids, self.length, VOCABULARY, CONTEXT)
        for start, size, count in plan_parts(len(ids), self.length, sorted(FUNCTIONS), CONTEXT):
            rows = np.zeros(size, np.int32)
            rows[:count] = ids[start : start + count]
            numbers = np.array([self.length + start], np.int32), np.array([count - 1], np.int32)
            logits = self.functions[size](*map(tvm.runtime.tensor, (rows, *numbers)), *self.cache)
        self.length += len(ids)
        return logits.numpy()[0]


def options():
    parser = argparse.ArgumentParser(description="Let {name} write.")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", help="the text before; needs the package tokenizers")
    given.add_argument("--ids", help="the tokens before, such as 1,2,3")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token each time")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    return parser.parse_args()


def tokenizer():
    """The tokenizer of the model's file."""
    path = FOLDER / "tokenizer.json"
    if not path.exists():
        raise ValueError("the tokenizer of this model is of a kind that is not known; give tokens with --ids")
    try:
        import tokenizers
    except ImportError:
        raise ValueError("--prompt needs the package tokenizers: pip install tokenizers; or give --ids") from None
    return tokenizers.Tokenizer.from_file(str(path))


def write(model, ids, asked, show):
    """Show the tokens that follow. Return how many there are, and when the first and the last one was known."""
    generator = np.random.default_rng(asked.seed)
    times = []
    while len(times) < asked.max_tokens:
        token = choose_token(model.step(ids), asked.temperature, asked.top_k, asked.top_p, generator)
        times.append(time.perf_counter())
        if token in END:
            break
        show(token)
        ids = [token]
    return times


def main():
    asked = options()
    check_sampling(asked.max_tokens, asked.temperature, asked.top_k, asked.top_p)
    if asked.ids is not None:
        ids = [int(word) for word in asked.ids.split(",")]
        show = lambda token: print(token, end=" ", flush=True)
    else:
        words = tokenizer()
        ids = words.encode(asked.prompt, add_special_tokens=False).ids
        told = []

        def show(token):
            text = words.decode(told, skip_special_tokens=False)
            told.append(token)
            print(words.decode(told, skip_special_tokens=False)[len(text) :], end="", flush=True)

    model = Model()
    check_tokens(ids, 0, VOCABULARY, CONTEXT)
    began = time.perf_counter()
    times = write(model, ids, asked, show)
    print()
    if times:
        first = times[0] - began
        speed = f", then {{(len(times) - 1) / (times[-1] - times[0]):.1f}} tokens a second" if len(times) > 1 else ""
        print(f"{{len(ids)}} tokens read, the first one written after {{first * 1e3:.0f}} ms{{speed}}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"run.py: {{error}}")
'''


def source(**parts: Any) -> str:
    """Return the script of a language model.

    Args:
        parts: What it says of the model: its `name`, its `functions` by how many tokens they read, the shapes and types
            of its `cache`, its `vocabulary`, `context` and `end` tokens, and `machine`, which checks what the CPU has.
    """
    shared = (check_tokens, check_sampling, plan_parts, choose_token)
    return _SCRIPT.format(**parts, shared="\n\n".join(inspect.getsource(function) for function in shared))
