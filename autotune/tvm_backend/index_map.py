"""The grammar of index maps in TVM's JSON: variables, integers, + - *, floor division and modulo.

A schedule brings such a map along to transform a layout or the loops of a block. A divisor is a positive number, a size
that the trace has sampled, or a product of those. A node refers only to nodes before it, as TVM writes them, so that
there is no cycle, and each is checked once. Nodes may be shared, but TVM walks an expression as often as it occurs: so
the size of a map is that of its expressions written out.
"""

from __future__ import annotations

import json
import re
from typing import Any

_MAX_NODES = 2048  # of a map; those of tensor cores have 32
_MAX_SIZE = 1024  # of a map written out, in nodes
_LARGEST = 2**62
_NAME = re.compile(r"[\w.]{1,200}")
_VARIABLE = re.compile(r"v[0-9]{1,9}")

_FIELDS: dict[str, tuple[str, ...]] = {
    "None": (),
    "int": (),
    "ffi.String": (),
    "ffi.Array": (),
    "ir.PrimType": ("span", "dtype"),
    "ir.Var": ("span", "ty", "name"),
    "ir.IntImm": ("span", "ty", "value"),
    **{f"prim.{name}": ("span", "ty", "a", "b") for name in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod")},
    "tirx.IndexMap": ("initial_indices", "final_indices", "inverse_index_map"),
}
_EXPRESSIONS = frozenset(name for name in _FIELDS if name.startswith("prim.")) | {"ir.Var", "ir.IntImm"}
_DIVISIONS = frozenset({"prim.FloorDiv", "prim.FloorMod"})
# The types of what a field refers to.
_REFERENCES: dict[str, frozenset[str]] = {
    "span": frozenset({"None"}),
    "ty": frozenset({"ir.PrimType"}),
    "name": frozenset({"ffi.String"}),
    "value": frozenset({"int"}),
    "a": _EXPRESSIONS,
    "b": _EXPRESSIONS,
    "initial_indices": frozenset({"ffi.Array"}),
    "final_indices": frozenset({"ffi.Array"}),
    "inverse_index_map": frozenset({"None", "tirx.IndexMap"}),
}


def is_index_map(value: Any) -> bool:
    """Return whether a value is the text of an index map, and one that is not too large when it is written out."""
    if not isinstance(value, str):
        return False
    try:
        return _holds(json.loads(value, object_pairs_hook=unique_keys))
    except (ValueError, TypeError, RecursionError):  # a list in place of a name is no key
        return False


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a table of JSON.

    Raises:
        ValueError: A key is in it twice. Readers differ in which one they take.
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table


def _holds(graph: Any) -> bool:
    if not isinstance(graph, dict) or not set(graph) <= {"root_index", "nodes", "metadata"}:
        return False
    nodes = graph.get("nodes")
    metadata = graph.get("metadata") or {}
    if not isinstance(nodes, list) or len(nodes) > _MAX_NODES or not set(metadata) <= {"tvm_version"}:
        return False
    reader = _Reader(nodes)
    return reader.reads_all() and reader.refers(graph.get("root_index"), frozenset({"tirx.IndexMap"}))


class _Reader:
    """Reads the nodes of an index map, each after those that it refers to."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes
        self._sizes: list[int] = []  # of the nodes that were read, written out
        self._divides: list[bool] = []  # whether one may be a divisor

    def reads_all(self) -> bool:
        """Return whether all nodes are of the grammar."""
        return all(map(self._reads, self._nodes))

    def refers(self, position: Any, types: frozenset[str]) -> bool:
        """Return whether a node that was read has this position and one of some types."""
        return type(position) is int and 0 <= position < len(self._sizes) and self._nodes[position]["type"] in types

    def _reads(self, node: Any) -> bool:
        if not isinstance(node, dict) or not set(node) <= {"type", "data"} or node.get("type") not in _FIELDS:
            return False
        kind = node["type"]
        data = node.get("data")
        if not self._is_of(kind, data):
            return False
        size = 1 + sum(self._sizes[position] for position in _operands(kind, data))
        self._sizes.append(size)
        self._divides.append(self._may_divide(kind, data))
        return size <= _MAX_SIZE

    def _is_of(self, kind: str, data: Any) -> bool:
        match kind:
            case "None":
                return data is None
            case "int":
                return type(data) is int and abs(data) < _LARGEST
            case "ffi.String":
                return isinstance(data, str) and _NAME.fullmatch(data) is not None
            case "ffi.Array":
                return isinstance(data, list) and all(self.refers(item, _EXPRESSIONS) for item in data)
        return self._has_fields(kind, data)

    def _has_fields(self, kind: str, data: Any) -> bool:
        if not isinstance(data, dict) or set(data) != set(_FIELDS[kind]):
            return False
        if data.get("dtype", "int32") not in ("int32", "int64"):
            return False
        if not all(self.refers(value, _REFERENCES[name]) for name, value in data.items() if name != "dtype"):
            return False
        if kind == "tirx.IndexMap":
            return self._are_variables(self._nodes[data["initial_indices"]]["data"])
        return kind not in _DIVISIONS or self._divides[data["b"]]

    def _are_variables(self, positions: list[int]) -> bool:
        variables = frozenset({"ir.Var"})
        return len(set(positions)) == len(positions) and all(self.refers(item, variables) for item in positions)

    def _may_divide(self, kind: str, data: Any) -> bool:
        match kind:
            case "ir.IntImm":
                return bool(self._nodes[data["value"]]["data"] > 0)
            case "ir.Var":
                return _VARIABLE.fullmatch(self._nodes[data["name"]]["data"]) is not None
            case "prim.Mul":
                return all(self._divides[data[side]] for side in ("a", "b"))
        return False


def _operands(kind: str, data: Any) -> list[int]:
    """Return the positions of the nodes that are written out as a part of a node."""
    if kind == "ffi.Array":
        return list(data)
    return [value for name, value in data.items() if name != "dtype"] if _FIELDS[kind] else []
