"""In which encodings a tensor is held: how its elements lie in memory, and what they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
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

    def shape_of(self, shape: Shape) -> Shape:
        """Return the shape, in an image or rows, of a tensor that has a shape in the graph."""
        if self.layout == "image":
            return (shape[0], *shape[2:], -(-shape[1] // self.lanes), self.lanes)
        return (1, 1, prod(shape[:-1]), -(-shape[-1] // self.lanes), self.lanes)


PLAIN = Encoding("plain")
Forms: TypeAlias = dict[Encoding, Expr]


def blocks(block: int) -> Encoding:
    """Return the encoding in blocks of so many channels; that of the graph if they are 0."""
    return Encoding("blocks", block) if block else PLAIN


def in_blocks(block: int, expr: Expr) -> Forms:
    """Return the encodings of what is computed in blocks of channels, or as in the graph."""
    return {blocks(block): expr}


@dataclass(frozen=True)
class Result:
    """What an operator computes: a variable of the graph, and its shape there."""

    var: Var
    shape: Shape
