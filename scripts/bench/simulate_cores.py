#!/usr/bin/env python
"""What would running kernels beside each other save on a machine with more cores? Simulated from measured kernels.

    python scripts/bench/simulate_cores.py --workspace FOLDER --cores 8 32

Each job of the workspace was tuned on one core (`submit --target 'llvm -num-cores=1'`), so that the best time of a task
is the work of its kernel. On more cores a kernel is cut into equal pieces, as the thread pool cuts it: eight for each
core, but none shorter than `--piece` microseconds. Cores take pieces until none is left, and each kernel ends with a
barrier of `--barrier` microseconds. Kernels beside each other have one barrier, and their pieces are taken together,
the longest first. Caches, memory and clocks are those of one core, which is optimistic, with and without.

Columns: the time on one core, and for each number of cores the time of kernels one after another, and the time with
small ones beside each other, as a part of that.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.plans.plan import Block, BlockFacts, Plan
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_plan, read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export.compilation import prepare_as_submitted
from autotune.tvm_backend.export.describe import plan_of_job
from autotune.tvm_backend.export.submitted import submitted
from autotune.tvm_backend.graph.concurrent import beside_where_small
from autotune.tvm_backend.load import load_for_tuning
from autotune.tvm_backend.search.tasks import BYTES_US
from autotune.tvm_backend.target import tvm_target

_PIECES = 8  # of a core, as in pool.c


def work_us(block: Block) -> float:
    """Return how long one core works on a kernel."""
    facts = block.facts or BlockFacts()
    if facts.best_us is not None:
        return facts.best_us
    written = {item.offset for item in facts.writes}
    moved = [*facts.writes, *(item for item in facts.reads if item.offset not in written)]
    return sum(item.bytes for item in moved) / BYTES_US


def groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield what runs beside each other."""
    group = list[Block]()
    for block in blocks:
        if group and not block.beside:
            yield group
            group = []
        group.append(block)
    yield group


def simulated_us(work: Sequence[float], cores: int, piece_us: float) -> float:
    """Return how long some kernels take together on so many cores, without the barrier."""
    total = sum(work)
    pieces = list[float]()
    for own in work:
        share = max(1, round(_PIECES * cores * own / total)) if total else 1
        count = max(1, min(share, int(own / piece_us)))
        pieces += [own / count] * count
    free = [0.0] * cores
    for length in sorted(pieces, reverse=True):
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)


def network_us(plan: Plan, work: dict[str, float], cores: int, options: argparse.Namespace) -> float:
    """Return how long a network takes by a plan."""
    together = [[work.get(block.operators[0], 0.0) for block in group] for group in groups(plan.blocks)]
    return sum(simulated_us(item, cores, options.piece) + options.barrier for item in together if sum(item))


def row(paths: JobPaths, spec: JobSpec, options: argparse.Namespace) -> str:
    """Return the row of a job."""
    plan = plan_of_job(paths, spec, "")
    work = {block.operators[0]: work_us(block) for block in plan.blocks}
    given = read_plan(paths)
    (model,) = submitted(paths, spec)
    columns = [spec.name, f"{sum(work.values()) / 1e3:.2f} ms"]
    for cores in options.cores:
        target = tvm_target({**spec.target, "num-cores": cores})
        prepared = prepare_as_submitted(model.module(), target, paths, spec)
        beside = beside_where_small(prepared, given, target)
        apart_us = network_us(plan, work, cores, options)
        ratio = network_us(beside if beside.blocks else plan, work, cores, options) / apart_us
        columns += [f"{apart_us / 1e3:.3f} ms", f"{ratio:.2f}"]
    return " | ".join(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--cores", type=int, nargs="+", default=(8, 32))
    parser.add_argument("--piece", type=float, default=2.0, help="microseconds that a piece takes at least")
    parser.add_argument("--barrier", type=float, default=3.0, help="microseconds")
    options = parser.parse_args()
    load_for_tuning("llvm")
    heads = [f"{cores} cores | beside" for cores in options.cores]
    print(f"| network | one core | {' | '.join(heads)} |\n{'|---' * (2 + 2 * len(heads))}|")
    for paths in Workspace(options.workspace).job_list():
        print(f"| {row(paths, read_spec(paths), options)} |", flush=True)


if __name__ == "__main__":
    main()
