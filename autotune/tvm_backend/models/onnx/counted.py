"""Tensors of an ONNX graph that have as many rows as the data say, as those that `NonMaxSuppression` puts out.

They are imported in their largest size, and a count says how many rows there are. Those beyond it are valid numbers
that nobody reads. So each operator after them has to treat the rows one by one, and what may not is refused. The axis
of the rows is the counted axis of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

import numpy as np
import onnx

from autotune.errors import OperatorRefused, Refusal
from autotune.tvm_backend.models.onnx.operators.loops import carried_by, is_counted, slices_at_most, slices_of
from autotune.tvm_backend.models.onnx.operators.nodes import ADVICE, attributes_of, node_name, opset_of
from autotune.tvm_backend.models.onnx.row_rules import (
    KnownTensors,
    Rows,
    Sizes,
    axis_of_results,
    first_rows,
    is_top_of_rows,
    sizes_of_result,
    smaller_size,
    source_of_results,
    takes_rows,
)
from autotune.tvm_backend.models.onnx.shape_inference import inferred_tensors, small_constants, without_values
from autotune.tvm_backend.models.onnx.simplify import names_read
from autotune.tvm_backend.types import ModelProto, NodeProto

COUNTED = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
_LONG = onnx.TensorProto.INT64
_RESULTS = {"Unique": 4}  # of which the last ones may be left out


@dataclass(frozen=True)
class CountedOutputs:
    """The outputs of a graph that have as many rows as the data say.

    Attributes:
        names: The names of the counts: int64 scalars, which the imported graph puts out after its own outputs.
        dims: For each of its own outputs the name of the count of each axis; an empty one for an axis of fixed size.
            Nothing where there are no counts.
        largest: The largest value of each count, by its name.
    """

    names: tuple[str, ...] = ()
    dims: tuple[tuple[str, ...], ...] = ()
    largest: Mapping[str, int] = field(default_factory=dict)


NO_COUNTS = CountedOutputs()


def first_counted(proto: ModelProto) -> NodeProto | None:
    """Return the first operator that puts out as many rows as the data say; None if there is none."""
    return next(filter(_finds_rows, proto.graph.node), None)


def _finds_rows(node: NodeProto) -> bool:
    return node.op_type in COUNTED or is_counted(node)


def _first_found(node: NodeProto) -> str:
    """Return the first result of an operator that has as many rows as it finds."""
    return slices_of(node)[0] if is_counted(node) else str(node.output[0])


def counted_outputs(proto: ModelProto) -> CountedOutputs:
    """Return which outputs of a graph, whose inputs have fixed shapes, have a count.

    Raises:
        OperatorRefused: A largest size is not known, or an operator may not treat the rows one by one.
    """
    return _Followed(proto).outputs() if first_counted(proto) else NO_COUNTS


def with_counts(proto: ModelProto) -> ModelProto:
    """Return a graph for the importer: its operators that find rows put out their count, too, which is an output.

    An index of a row that is not there may be any. So indices are kept within what they are for.

    Args:
        proto: A graph whose inputs have fixed shapes. It is returned itself if it has no such operators.

    Raises:
        OperatorRefused: As for `counted_outputs`.
    """
    if not first_counted(proto):
        return proto
    followed = _Followed(proto)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    nodes = list(chain.from_iterable(map(followed.for_importer, copy.graph.node)))
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in followed.outputs().names)
    return copy


class _Followed:
    """A graph through which the rows were followed.

    Attributes:
        counts: The name of the count of each operator whose rows reach an output, by its result. A count is called
            after the first output that has it.
    """

    def __init__(self, proto: ModelProto) -> None:
        self._graph = proto.graph
        self._opset = opset_of(proto)
        constants = dict(small_constants(proto.graph))
        rows: dict[str, Rows] = {}
        sizes: dict[str, Sizes] = {}
        self._of_shapes: dict[str, Sizes] = {}
        self._firsts: dict[str, tuple[str, int]] = {}  # what leaves the first rows of an operator, and how many of them
        self._tensors = KnownTensors(self._opset, *inferred_tensors(proto), constants, rows, sizes)
        largest = self._largest(proto, rows)
        self._tensors = KnownTensors(self._opset, *inferred_tensors(largest), constants, rows, sizes)
        stale = False
        for node in proto.graph.node:
            if not any(name in rows or name in sizes for name in names_read(node)):
                continue
            if (smaller := smaller_size(node, self._tensors)) is not None:
                self._firsts[node.output[0]] = smaller
            of_result = sizes_of_result(node, self._tensors) if smaller is None else (node.output[0],)
            if of_result is not None:
                self._of_shapes[node.output[0]] = of_result
                stale = True
                if any(isinstance(size, str) for size in of_result):
                    sizes[node.output[0]] = of_result
                else:
                    constants[node.output[0]] = np.array(of_result, np.int64)
                continue
            if stale and not all(name in self._tensors.shapes for name in node.output if name):
                self._tensors = self._with_sizes(largest)
                stale = False
            rows |= dict.fromkeys(filter(None, node.output), self._followed(node))
        self._own = [item.name for item in proto.graph.output]
        self.counts: dict[str, str] = {}
        for name in self._own:
            if name in rows:
                self.counts.setdefault(rows[name].source, _free(f"{name}_count", self._own))

    def _with_sizes(self, largest: ModelProto) -> KnownTensors:
        """Return what is known once inference is told the tensors that are made of shapes."""
        nodes = [
            self._constant(node.output[0], map(self._most, self._of_shapes[node.output[0]]))
            if node.output[0] in self._of_shapes
            else node
            for node in largest.graph.node
        ]
        told = onnx.ModelProto()
        told.CopyFrom(largest)
        del told.graph.node[:]
        told.graph.node.extend(nodes)
        shapes, types = inferred_tensors(told)
        return replace(self._tensors, shapes=shapes, types=types)

    def outputs(self) -> CountedOutputs:
        """Return which outputs have a count."""
        tensors = self._tensors
        if not self.counts:
            return NO_COUNTS
        dims = []
        for item in self._graph.output:
            of_axes = [""] * len(tensors.shapes.get(item.name, ()))
            if item.name in tensors.rows:
                rows = tensors.rows[item.name]
                of_axes[rows.axis] = self.counts[rows.source]
            dims.append(tuple(of_axes))
        largest = {count: self._most(source) for source, count in self.counts.items()}
        return CountedOutputs(tuple(largest), tuple(dims), largest)

    def for_importer(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield what takes the place of an operator."""
        tensors = self._tensors
        if node.output[0] in self._firsts:
            yield from self._smaller(node.output[0])
        if node.output[0] in self._of_shapes:
            yield from self._sizes(node.output[0])
            return
        if _finds_rows(node):
            node.output.extend([""] * (_RESULTS.get(node.op_type, len(node.output)) - len(node.output)))
            node.output.append(self._count(_first_found(node)))
        if node.input and node.input[-1] in tensors.sizes:
            yield self._constant(f"{node.output[0]}.largest", map(self._most, tensors.sizes[node.input[-1]]))
            node.input[-1] = f"{node.output[0]}.largest"
        if takes_rows(node, tensors):
            yield from self._from_first(node)
        elif node.op_type in ("Gather", "GatherND") and node.input[1] in tensors.rows:
            yield from self._within(node)
        if is_top_of_rows(node, tensors):
            yield from self._masked(node)
        yield node

    def _smaller(self, name: str) -> Iterator[NodeProto]:
        """Yield what computes the count of what leaves the first rows of an operator."""
        source, most = self._firsts[name]
        count = self._count(name)
        yield self._constant(f"{count}.most", [most], ())
        yield onnx.helper.make_node("Min", [self._count(source), f"{count}.most"], [count], count)

    def _masked(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield operators that make rows which are not there the last of all, and let a TopK read their result."""
        x = node.input[0]
        rows = self._tensors.rows[x]
        shape = self._tensors.shapes[x]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self._tensors.types[x])
        ends = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        last = np.array(ends[not attributes_of(node).get("largest", 1)], dtype)
        place, there, end, masked = (f"{node.output[0]}.{part}" for part in ("place", "there", "end", "masked"))
        column = [size if axis == rows.axis else 1 for axis, size in enumerate(shape)]
        yield self._constant(place, range(shape[rows.axis]), column)
        yield onnx.helper.make_node("Less", [place, self._count(rows.source)], [there], there)
        yield onnx.helper.make_node("Constant", [], [end], end, value=onnx.numpy_helper.from_array(last))
        yield onnx.helper.make_node("Where", [there, x, end], [masked], masked)
        node.input[0] = masked

    def _count(self, source: str) -> str:
        """Return the name of the count of the rows that an operator finds."""
        return self.counts.get(source, f"{source}.count")

    def _sizes(self, name: str) -> Iterator[NodeProto]:
        """Yield what makes a tensor of shapes: its numbers of rows are the counts. Nothing if nobody reads it so."""
        sizes = self._of_shapes[name]
        if name not in self._tensors.sizes:
            yield self._constant(name, sizes)
        elif name in self._own:
            elements = [f"{name}.{place}" for place in range(len(sizes))]
            yield self._constant(f"{name}.one", [1])
            for element, size in zip(elements, sizes, strict=True):
                if isinstance(size, str):
                    yield onnx.helper.make_node("Reshape", [self._count(size), f"{name}.one"], [element], element)
                else:
                    yield self._constant(element, [size])
            yield self._constant(f"{name}.shape", self._tensors.shapes[name])
            yield onnx.helper.make_node("Concat", elements, [f"{name}.flat"], f"{name}.flat", axis=0)
            yield onnx.helper.make_node("Reshape", [f"{name}.flat", f"{name}.shape"], [f"{name}.long"], f"{name}.long")
            yield onnx.helper.make_node("Cast", [f"{name}.long"], [name], name, to=self._tensors.types[name])

    def _constant(self, name: str, values: Iterable[int | str], shape: Sequence[int] = (-1,)) -> NodeProto:
        """Return an operator that puts out constant integers, of the shape that is known of this name, or of this."""
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self._tensors.types.get(name, _LONG))
        array = np.array(list(values), dtype).reshape(self._tensors.shapes.get(name, shape))
        return onnx.helper.make_node("Constant", [], [name], name, value=onnx.numpy_helper.from_array(array))

    def _most(self, size: int | str) -> int:
        """Return how many rows an operator finds at most; a number as it is."""
        if isinstance(size, int):
            return size
        if size not in self._tensors.rows:  # a Min
            return min(self._firsts[size][1], self._most(self._firsts[size][0]))
        return self._tensors.shapes[size][self._tensors.rows[size].axis]

    def _from_first(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield operators that make places of rows, which may be counted from the last one, places from the first."""
        count = self._count(self._tensors.rows[node.input[0]].source)
        one, most, given, places = (f"{node.output[0]}.{part}" for part in ("one", "most", "given", "places"))
        yield self._constant(one, [1], ())
        yield onnx.helper.make_node("Max", [count, one], [most], most)
        yield onnx.helper.make_node("Cast", [node.input[1]], [given], given, to=_LONG)
        yield onnx.helper.make_node("Mod", [given, most], [places], places)
        node.input[1] = places

    def _within(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield operators that keep indices within a tensor, and let an operator read their result."""
        data, indices = node.input
        shape = self._tensors.shapes[data]
        if node.op_type == "Gather":
            sizes = np.array(shape[int(attributes_of(node).get("axis", 0)) % len(shape)])
        else:
            sizes = np.array(shape[: self._tensors.shapes[indices][-1]])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self._tensors.types[indices])
        for kind, limit in (("Max", -sizes), ("Min", sizes - 1)):
            name = f"{node.output[0]}.{kind}"
            value = onnx.numpy_helper.from_array(limit.astype(dtype))
            yield onnx.helper.make_node("Constant", [], [f"{name}.limit"], f"{name}.limit", value=value)
            yield onnx.helper.make_node(kind, [node.input[1], f"{name}.limit"], [name], name)
            node.input[1] = name

    def _largest(self, proto: ModelProto, rows: dict[str, Rows]) -> ModelProto:
        """Return a graph that is given the rows in their largest number, in place of the operators that find them."""
        largest = without_values(proto)
        del largest.graph.node[:]
        del largest.graph.value_info[:]
        for node in proto.graph.node:
            if not _finds_rows(node):
                largest.graph.node.append(node)
                continue
            try:
                results = list(_results(node, self._tensors, proto))
            except ValueError as error:
                raise self._refused(node, str(error)) from error
            except KeyError as error:
                raise self._refused(node, f"the size of {error} depends on the data, or is not known") from error
            for item in results:
                if item.axis is not None:
                    rows[item.name] = Rows(item.axis, _first_found(node))
                largest.graph.input.append(onnx.helper.make_tensor_value_info(item.name, item.kind, item.shape))
        for item in largest.graph.output:
            item.type.tensor_type.ClearField("shape")
        return largest

    def _followed(self, node: NodeProto) -> Rows:
        """Return the rows of the results of an operator that reads some."""
        tensors = self._tensors
        name = next(name for name in names_read(node) if name in tensors.rows or name in tensors.sizes)
        why = f"it has {name!r} with as many rows as the data say, and may not treat them one by one"
        try:
            axis = axis_of_results(node, tensors)
            source = source_of_results(node, tensors)
            if unknown := [result for result in node.output if result and result not in tensors.shapes]:
                raise KeyError(unknown[0])
            first = first_rows(node, tensors)
            if first is None:
                return Rows(axis, source)
            self._firsts[node.output[0]] = (source, first)
            return Rows(axis, node.output[0])
        except ValueError as error:
            raise self._refused(node, f"{why}: {error}" if str(error) else why, name) from error
        except KeyError as error:
            raise self._refused(node, f"{why}: the shape of {error} is not known", name) from error

    def _refused(self, node: NodeProto, reason: str, end: str = "") -> OperatorRefused:
        advice = f"end the model at {end or node.input[0]!r}, or {ADVICE}"
        return OperatorRefused.of(Refusal(node.op_type, node_name(node), reason, advice, self._opset))


@dataclass(frozen=True)
class _Result:
    """A result of an operator that finds rows, in its largest size.

    Attributes:
        axis: The counted axis; None if it is of fixed size.
        kind: The ONNX element type.
    """

    name: str
    axis: int | None
    shape: Sequence[int]
    kind: int = _LONG


def _results(node: NodeProto, tensors: KnownTensors, proto: ModelProto) -> Iterator[_Result]:
    """Yield the results of an operator that finds rows.

    Raises:
        ValueError: There is no largest shape, or it is empty.
        KeyError: The shape of an input is not known.
    """
    if is_counted(node):
        carried = zip(carried_by(node), node.output, strict=False)
        yield from (_Result(new, None, tensors.shapes[old], tensors.types[old]) for old, new in carried)
        for name, shape in zip(slices_of(node), slices_at_most(node, proto), strict=True):
            yield _Result(name, 0, shape, tensors.types[name])
        return
    shape = tensors.shapes[node.input[0]]
    along = attributes_of(node).get("axis")
    axis = 0 if along is None else int(along) % len(shape)
    largest: tuple[int, ...]
    if node.op_type == "NonZero":
        axis = 1
        largest = (len(shape), prod(shape))
    elif node.op_type == "Compress":
        (size,) = tensors.shapes[node.input[1]]
        largest = (size,) if along is None else (*shape[:axis], size, *shape[axis + 1 :])
    elif node.op_type == "Unique":
        largest = (prod(shape),) if along is None else tuple(shape)
    else:
        batch, classes, boxes = tensors.shapes[node.input[1]]
        most = node.input[2] if len(node.input) > 2 else ""
        if most and most not in tensors.constants:
            raise ValueError(f"it keeps at most {most!r} boxes of each class, which must be a constant, as by --value")
        largest = (batch * classes * min(boxes, int(tensors.constants[most].item()) if most else 0), 3)
    if not prod(largest):
        raise ValueError("it finds nothing, whatever the data are")
    kept = node.op_type in ("Compress", "Unique")
    yield _Result(node.output[0], axis, largest, tensors.types[node.input[0]] if kept else _LONG)
    others = zip(node.output[1:], (0, None, 0), strict=False)
    yield from (_Result(name, of_rows, (largest[axis],)) for name, of_rows in others if name)


def _free(name: str, taken: Sequence[str]) -> str:
    return _free(f"{name}_", taken) if name in taken else name
