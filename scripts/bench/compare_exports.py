#!/usr/bin/env python
"""Time two exports of one model by turns, each in a process of its own, and print how long the second takes.

    python scripts/bench/compare_exports.py BEFORE AFTER --turns 21

The ratio is that of the second to the first within a turn: its median, and its range. Nothing else should run on the
machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from exports import Export

from autotune.tvm_backend.export.timing.comparison import TIMINGS, RuntimeComparison, ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs=2, type=Path, metavar="EXPORT")
    parser.add_argument("--turns", type=int, default=21)
    options = parser.parse_args()
    before, after = map(Export.read, options.folders)
    runtimes = {"before": before.library, "after": after.library}
    with RuntimeComparison(runtimes, before.inputs, before.arrays(), before.threads) as comparison:
        times = comparison.time(options.turns * TIMINGS)
    shares = ratios(times["after"], times["before"])
    for export, name in ((before, "before"), (after, "after")):
        print(f"{export.folder.name}: {times[name].median_ms:.2f} ms")
    print(
        f"{statistics.median(shares):.3f} of the time ({min(shares):.2f} to {max(shares):.2f} in {len(shares)} turns)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
