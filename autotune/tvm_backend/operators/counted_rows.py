"""Kernels that find as many rows as the data say: the result has room for the most, and its last row says how many."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.operators.activations import argument, body, kernel
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc

_LEFT, _KEPT, _BEST, _TOTAL = range(4)  # what a suppression counts


def kept_places_kernel(count: int) -> PrimFunc:
    """Return the kernel that finds which elements are true.

    Its arguments are (count,) booleans, and (count + 1,) int64: the places in order, zeros, and how many there are.
    """
    with kernel() as made:
        mask = argument("mask", (count,), "bool")
        places = argument("places", (count + 1,), "int64")
        with body():
            with T.serial(0, count + 1) as place:
                T.buffer_store(places, _long(0), [place])
            with T.serial(0, count) as place, T.If(mask[place]), T.Then():
                T.buffer_store(places, place.astype("int64"), [places[count]])
                T.buffer_store(places, places[count] + _long(1), [count])
    return made()


@dataclass(frozen=True)
class Suppression:
    """A non-maximum suppression of boxes, as ONNX defines it.

    Attributes:
        batch, classes, boxes: How many there are.
        most: How many boxes are kept at most of each class of each batch.
        centered: Whether boxes are a centre and a size, and not two corners.
        has_least: Whether boxes whose score is not above the second limit are left out.
    """

    batch: int
    classes: int
    boxes: int
    most: int
    centered: bool
    has_least: bool

    @property
    def rows(self) -> int:
        """How many boxes are kept at most."""
        return self.batch * self.classes * self.most


def suppression_kernel(told: Suppression) -> PrimFunc:
    """Return the kernel. It keeps the best box that is left, and leaves out those that overlap it, again and again.

    Its arguments are the boxes (batch, boxes, 4), the scores (batch, classes, boxes), the limits of the overlap and of
    the scores (2,), and (rows + 1, 3) int64: batch, class and box in the order of ONNX, zeros, and how many there are.
    """
    with kernel() as made:
        boxes = argument("boxes", (told.batch, told.boxes, 4))
        scores = argument("scores", (told.batch, told.classes, told.boxes))
        limits = argument("limits", (2,))
        result = argument("result", (told.rows + 1, 3), "int64")
        with body():
            with T.serial(0, told.rows + 1) as row, T.serial(0, 3) as column:
                T.buffer_store(result, _long(0), [row, column])
            one = _OfOneClass(told, boxes, scores, limits, result)
            with T.serial(0, told.batch) as batch, T.serial(0, told.classes) as label:
                one.write(batch, label)
            T.buffer_store(result, one.numbers[_TOTAL].astype("int64"), [told.rows, 0])
    return made()


class _OfOneClass:
    """Writes the suppression of one class."""

    def __init__(self, told: Suppression, boxes: Buffer, scores: Buffer, limits: Buffer, result: Buffer) -> None:
        self._told = told
        self._boxes = boxes
        self._scores = scores
        self._limits = limits
        self._result = result
        self._left = T.alloc_buffer((told.boxes,), "int32")  # the boxes that are left, in order
        self.numbers = T.alloc_buffer((4,), "int32")
        self._set(_TOTAL, 0)

    def write(self, batch: PrimExpr, label: PrimExpr) -> None:
        """Write the suppression of one class of one batch."""
        told = self._told
        self._set(_LEFT, 0)
        with T.serial(0, told.boxes) as box:
            if told.has_least:
                with T.If(self._scores[batch, label, box] > self._limits[1]), T.Then():
                    self._append(box, _LEFT)
            else:
                self._append(box, _LEFT)
        with T.serial(0, told.most), T.If(self.numbers[_LEFT] > 0), T.Then():
            self._find_best(batch, label)
            for column, value in enumerate((batch, label, self.numbers[_BEST])):
                T.buffer_store(self._result, tirx.Cast("int64", value), [self.numbers[_TOTAL], column])
            self._set(_TOTAL, self.numbers[_TOTAL] + 1)
            self._leave_out(batch)

    def _find_best(self, batch: PrimExpr, label: PrimExpr) -> None:
        """Write what finds the box with the largest score; of equal ones the first."""
        self._set(_BEST, self._left[0])
        with T.serial(1, self.numbers[_LEFT]) as place:
            box = self._left[place]
            better = self._scores[batch, label, box] > self._scores[batch, label, self.numbers[_BEST]]
            with T.If(better), T.Then():
                self._set(_BEST, box)

    def _leave_out(self, batch: PrimExpr) -> None:
        """Write what leaves out the best box and those that overlap it."""
        self._set(_KEPT, 0)
        best = self.numbers[_BEST]
        with T.serial(0, self.numbers[_LEFT]) as place:
            box = self._left[place]
            with T.If(tirx.all(box != best, tirx.Not(self._overlap(batch, box, best)))), T.Then():
                self._append(box, _KEPT)
        self._set(_LEFT, self.numbers[_KEPT])

    def _overlap(self, batch: PrimExpr, one: PrimExpr, other: PrimExpr) -> PrimExpr:
        """Return whether what two boxes share is more than the limit of what they cover together."""
        spans = [(self._span(batch, one, axis), self._span(batch, other, axis)) for axis in (0, 1)]
        shared = [tirx.min(a[1], b[1]) - tirx.max(a[0], b[0]) for a, b in spans]
        area = shared[0] * shared[1]
        areas = [(first[1] - first[0]) * (second[1] - second[0]) for first, second in zip(*spans, strict=True)]
        union = areas[0] + areas[1] - area
        filled = [item > 0.0 for item in (*shared, area, *areas, union)]
        return tirx.all(*filled, area / union > self._limits[0])

    def _span(self, batch: PrimExpr, box: PrimExpr, axis: int) -> tuple[PrimExpr, PrimExpr]:
        """Return where a box begins and ends."""
        one, other = self._boxes[batch, box, axis], self._boxes[batch, box, axis + 2]
        if self._told.centered:
            return one - other / 2.0, one + other / 2.0
        return tirx.min(one, other), tirx.max(one, other)

    def _append(self, box: PrimExpr, counter: int) -> None:
        T.buffer_store(self._left, box, [self.numbers[counter]])
        self._set(counter, self.numbers[counter] + 1)

    def _set(self, counter: int, value: PrimExpr | int) -> None:
        T.buffer_store(self.numbers, value, [counter])


def _long(value: int) -> PrimExpr:
    return tirx.const(value, "int64")
