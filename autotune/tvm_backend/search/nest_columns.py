"""The names and the order of the features of a loop nest."""

from __future__ import annotations

LEVELS = 8  # of a tiling structure at most: GPUs have SSSRRSRS
PARTS = 5  # of a tile at most
LOOPS = 4  # the tiles of this many spatial loops are features, from the innermost one outwards
LOCATIONS = 2  # the compute locations of this many producers are features
BODIES = 4  # statements that may be unrolled are counted for this many levels, from inside out
BUFFERS = ("largest_input", "second_input", "output")

_LEVEL_COLUMNS = (
    *("extent", "iterations"),
    *(f"{buffer}_{fact}" for buffer in BUFFERS for fact in ("elements", "reuse", "run")),
    "elements",
)
_SCHEDULE_COLUMNS = (
    "unroll_limit",
    *(f"unroll_limit_over_body{level}" for level in range(BODIES)),
    *("inner_tile", "inner_rows", "first_inner_reduction", "last_inner_reduction"),
    *("parallel_pieces", "parallel_balance", "outer_tile"),
    *("spatial_iterations", "reduction_iterations", "fused_level", "producers", "loops"),
    *(f"producer{index}_{fact}" for index in range(LOCATIONS) for fact in ("loop", "level")),
    *("result_registers", "register_pressure"),
)
# The features in their order. Levels, loops and parts of tiles count from inside out. All are logarithms to base 2,
# except balance (a share from 0 to 1), levels, loops and producers (numbers). What a candidate does not have is NaN.
COLUMNS = (
    *(f"level{level}_{name}" for level in range(LEVELS) for name in _LEVEL_COLUMNS),
    *(f"loop{loop}_part{part}" for loop in range(LOOPS) for part in range(PARTS)),
    *_SCHEDULE_COLUMNS,
)
WIDTH = len(COLUMNS)
