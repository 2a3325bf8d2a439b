"""Edit the plans of small networks at random: each is refused with one line, or computes what the network computes.

    python scripts/chaos/fuzz_plans.py --count 100 --seed 1                  # two minutes
    python scripts/chaos/fuzz_plans.py --count 0 --read 100000 --seed 1      # only the files, whatever is in them

An edit splits blocks, puts them in another order, gives them other algorithms, layouts and threads, and runs some
beside each other. What is not refused is compiled without tuning and run. With `--read` the files are changed as well
(`grown_plans.py`), and read. Exit code 1 if a plan computed something else, raised something else than a refusal of one
line, or took more than 2 s of a CPU or 200 MB to read.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grown_plans
import numpy as np
import tvm
from bounds import Bounds
from tvm import relax

from autotune.errors import AutotuneError, BadInput
from autotune.network_plan.plan import ALGORITHMS, Block, BlockFacts, Plan, read, text
from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.export.describe import plan_of
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.types import Expr, IRModule, Target

_TOLERANCE = 1e-4  # Winograd's algorithm rounds more
_THREADS = 2
_LAYOUTS = ("NCHW4c", "NCHW8c", "NCHW12c", "NCHW16c")
_IMAGE = (1, 16, 12, 12)

Emit = Callable[[Expr], Expr]


class _Weights:
    """Draws constants."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Expr:
        scale = np.prod(shape[1:]) ** -0.5
        return relax.const((self._draw.standard_normal(shape) * scale).astype(np.float32))

    def convolution(self, emit: Emit, x: Expr, outputs: int, size: int = 3, **attributes: Any) -> Expr:
        inputs = int(x.ty.shape.values[1]) // attributes.get("groups", 1)
        padding = size // 2 * int(attributes.get("dilation", 1))
        y = emit(relax.op.nn.conv2d(x, self(outputs, inputs, size, size), padding=padding, **attributes))
        return emit(relax.op.nn.relu(emit(relax.op.add(y, self(1, outputs, 1, 1)))))


def _residual(emit: Emit, x: Expr, weights: _Weights) -> Expr:
    first = weights.convolution(emit, x, 16)
    second = weights.convolution(emit, first, 16)
    return weights.convolution(emit, emit(relax.op.add(first, second)), 32, 1)


def _branches(emit: Emit, x: Expr, weights: _Weights) -> Expr:
    branches = [weights.convolution(emit, x, 16, size) for size in (1, 3, 5)]
    return weights.convolution(emit, emit(relax.op.concat(branches, 1)), 16, 1)


def _depthwise(emit: Emit, x: Expr, weights: _Weights) -> Expr:
    y = weights.convolution(emit, x, 32, 1)
    y = weights.convolution(emit, y, 32, groups=32)
    return weights.convolution(emit, y, 16, 1, strides=2)


def _dilated(emit: Emit, x: Expr, weights: _Weights) -> Expr:
    y = weights.convolution(emit, x, 16, dilation=2)
    z = weights.convolution(emit, y, 16, dilation=1)
    return emit(relax.op.multiply(emit(relax.op.sigmoid(z)), y))


def _attention(emit: Emit, x: Expr, weights: _Weights) -> Expr:
    rows = emit(relax.op.reshape(x, (144, 16)))
    query, key, value = (emit(relax.op.matmul(rows, weights(16, 16))) for _ in range(3))
    scores = emit(relax.op.nn.softmax(emit(relax.op.matmul(query, emit(relax.op.permute_dims(key)))), -1))
    return emit(relax.op.add(emit(relax.op.matmul(scores, value)), rows))


def _heads(emit: Emit, x: Expr, weights: _Weights) -> Expr:
    trunk = weights.convolution(emit, x, 32)
    pooled = [emit(relax.op.mean(weights.convolution(emit, trunk, 16), [2, 3])) for _ in range(2)]
    return emit(relax.op.matmul(emit(relax.op.concat(pooled, 1)), weights(32, 10)))


NETWORKS = (_residual, _branches, _depthwise, _dilated, _attention, _heads)


def build(network: Callable[[Emit, Expr, _Weights], Expr]) -> IRModule:
    """Return a module whose `main` computes a network of an image."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(_IMAGE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(network(builder.emit, x, _Weights()))
        builder.emit_func_output(out)
    return builder.get()


def edited(plan: Plan, draw: random.Random) -> Plan:
    """Return a plan with random edits, of which some cannot be followed."""
    beside = _beside(_shuffled(plan.blocks, draw), draw)
    blocks = [part for block in beside for part in _split(block, draw)]
    return replace(plan.decisions(), blocks=tuple(_decided(block, draw) for block in blocks))


def _beside(blocks: Sequence[Block], draw: random.Random) -> list[Block]:
    """Run some blocks beside the one before them, most of them such as read nothing of it."""
    made = list[Block]()
    written = set[str]()
    for block in blocks:
        facts = block.facts or BlockFacts()
        reads, writes = ({item.name for item in items} for items in (facts.reads, facts.writes))
        beside = bool(made) and draw.random() < (0.03 if reads & written else 0.5)
        written = writes | (written if beside else set())
        made.append(replace(block, beside=beside))
    return made


def _shuffled(blocks: Sequence[Block], draw: random.Random) -> list[Block]:
    """Return blocks in a random order in which each comes after those whose results it reads."""
    written = {item.name: number for number, block in enumerate(blocks) if block.facts for item in block.facts.writes}
    reads = [{item.name for item in block.facts.reads} if block.facts else set[str]() for block in blocks]
    left = set(range(len(blocks)))
    order = list[Block]()
    while left:
        ready = [number for number in left if not {written[name] for name in reads[number] if name in written} & left]
        chosen = draw.choice(ready) if draw.random() < 0.5 else min(ready)
        left.remove(chosen)
        order.append(blocks[chosen])
    return order


def _split(block: Block, draw: random.Random) -> list[Block]:
    at = draw.randrange(len(block.operators))
    if at == 0 or draw.random() < 0.5:
        return [block]
    return [replace(block, operators=block.operators[:at]), Block(operators=block.operators[at:])]


def _decided(block: Block, draw: random.Random) -> Block:
    algorithm = block.algorithm
    layout = block.layout
    if algorithm is not None and draw.random() < 0.2:
        algorithm = draw.choice(ALGORITHMS)
    if layout is not None and draw.random() < 0.5:
        layout = draw.choice(_LAYOUTS)
    return replace(block, algorithm=algorithm, layout=layout, threads=draw.randint(1, _THREADS), facts=None)


def outputs(prepared: IRModule, target: Target) -> Any:
    """Compile a module without tuning, and return what it makes of random pixels."""
    machine = relax.VirtualMachine(compile_tuned(prepared, [], {}, target), tvm.cpu())
    data = np.random.default_rng(1).standard_normal(_IMAGE).astype(np.float32)
    return machine["main"](tvm.runtime.tensor(data)).numpy()


def judge(module: IRModule, plan: Plan, wanted: Any, target: Target) -> str:
    """Return what became of a plan: `refused`, `equal`, `different` or `raised`."""
    try:
        results = outputs(prepare(module, target, plan=plan), target)
    except BadInput:
        return "refused"
    except Exception as error:
        print(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}\n{plan}")
        return "raised"
    error = float(np.abs(results - wanted).max() / np.abs(wanted).max())
    return "equal" if error < _TOLERANCE else "different"


def _read(path: Path) -> str:
    """Read a file, and return what became of it."""
    try:
        read(path)
    except AutotuneError as error:
        said = str(error)
        return "refused" if len(said.splitlines()) == 1 and len(said) < 1000 else f"unclear: {said[:200]!r}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return "read"


def read_mutants(plans: Sequence[Plan], count: int, minutes: float, draw: random.Random) -> Counter[str]:
    """Change the files of plans, read them, and count what became of them. What is wrong is printed."""
    outcomes = Counter[str]()
    bounds = Bounds()
    deadline = time.monotonic() + minutes * 60
    texts = [text(plan) for plan in plans]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.toml")
        for number in range(count):
            if time.monotonic() > deadline:
                break
            path.write_text(grown_plans.mutate(draw.choice(texts), draw), encoding="utf-8")
            outcome = bounds.outcome(lambda: _read(path))
            outcomes[outcome.partition(":")[0]] += 1
            if outcome not in ("read", "refused"):
                print(f"file {number}: {outcome}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="How many plans.")
    parser.add_argument("--read", type=int, default=0, help="How many changed files of plans to read.")
    parser.add_argument("--minutes", type=float, default=math.inf, help="Read no further file after so long.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    load_tvm("llvm")
    draw = random.Random(options.seed)
    target = tvm.target.Target({"kind": "llvm", "num-cores": _THREADS})
    verdicts = Counter[str]()
    plans = list[Plan]()
    for number, network in enumerate(NETWORKS):
        module = build(network)
        prepared = prepare(module, target)
        plan = plan_of(prepared, target, {}, {}, network.__name__)
        plans.append(plan)
        if number >= options.count:
            continue
        wanted = outputs(prepared, target)
        for _ in range(number, options.count, len(NETWORKS)):
            verdicts[judge(module, edited(plan, draw), wanted, target)] += 1
        print(network.__name__.strip("_"), dict(verdicts), flush=True)
    outcomes = read_mutants(plans, options.read, options.minutes, draw)
    if options.read:
        print(f"{outcomes.total()} files:", dict(outcomes), flush=True)
    wrong = verdicts["different"] or verdicts["raised"] or outcomes.keys() - {"read", "refused"}
    return 1 if wrong or (options.count and not verdicts["equal"]) else 0


if __name__ == "__main__":
    sys.exit(main())
