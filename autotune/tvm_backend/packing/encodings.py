"""In which encodings a tensor is held: how its elements lie in memory, and what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.tvm_backend.types import Expr, Var

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Encoding:
    """How the elements of a tensor lie in memory. The last of its chunks of channels may be filled up.

    Attributes:
        layout: `plain` is that of the graph. An image (N, C, H, W) is in `blocks`, (N, C / b, H, W, b), or an `image`,
            (N, H, W, C / b, b). `rows` are an image of one row, (1, 1, R, C / b, b).
        lanes: Channels of a chunk, b; 0 where there are no chunks.
        dtype: Of the elements; empty for that of the graph.
    """

    layout: Literal["plain", "blocks", "image", "rows"]
    lanes: int = 0
    dtype: str = ""


PLAIN = Encoding("plain")
Forms: TypeAlias = dict[Encoding, Expr]


@dataclass(frozen=True)
class Result:
    """What an operator computes: a variable of the graph, and its shape there."""

    var: Var
    shape: Shape
