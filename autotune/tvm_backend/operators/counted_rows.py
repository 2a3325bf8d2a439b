"""Kernels that find as many rows as the data say: the result has room for the most, and its last row says how many."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.operators.activations import argument, body, kernel
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc

# The numbers that a suppression remembers: how many boxes are left, how many are kept of this class and of all, the box
# at hand and whether it stays, and two places in the heap.
_LEFT, _KEPT, _TOTAL, _BEST, _STAYS, _PARENT, _CHILD = range(7)
# Those that a sort remembers: how long sorted parts are, the next slice of each of two, and how slices compare.
_LENGTH, _ONE, _OTHER, _SIGN = range(4)


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


def unique_kernel(count: int, width: int, dtype: str, *, is_sorted: bool) -> PrimFunc:
    """Return the kernel that finds which slices of a tensor differ.

    It puts the slices in order, equal ones by their place. So each group of equal ones begins with its first.

    Args:
        is_sorted: Whether the groups are in the order of their values, and not of their first slices.

    Its arguments are the slices (count, width), and int64: (count + 1,) the first slice of each group, zeros, and how
    many there are; (count,) the group of each slice; (count,) how many slices each group has, and zeros.
    """
    with kernel() as made:
        slices = argument("slices", (count, width), dtype)
        firsts = argument("firsts", (count + 1,), "int64")
        groups = argument("groups", (count,), "int64")
        sizes = argument("sizes", (count,), "int64")
        with body():
            ordered = _Sorted(slices, count, width)
            ordered.write()
            with T.serial(0, count + 1) as place:
                T.buffer_store(firsts, _long(0), [place])
            with T.serial(0, count) as place:
                T.buffer_store(sizes, _long(0), [place])
            with T.serial(0, count) as place:
                ordered.compare(ordered.places[tirx.max(place - 1, 0)], ordered.places[place])
                with T.If(tirx.any(place == 0, ordered.differs)), T.Then():
                    T.buffer_store(firsts, ordered.places[place].astype("int64"), [firsts[count]])
                    T.buffer_store(firsts, firsts[count] + _long(1), [count])
                T.buffer_store(groups, firsts[count] - _long(1), [ordered.places[place]])
            if not is_sorted:
                _by_first_slice(count, firsts, groups)
            with T.serial(0, count) as place:
                T.buffer_store(sizes, sizes[groups[place]] + _long(1), [groups[place]])
    return made()


class _Sorted:
    """Writes what puts slices in order, by their first elements that differ: sorted parts are merged, two at a time.

    Attributes:
        places: The slices in order.
    """

    def __init__(self, slices: Buffer, count: int, width: int) -> None:
        self._slices = slices
        self._count = count
        self._width = width
        self.places = T.alloc_buffer((count,), "int32")
        self._merged = T.alloc_buffer((count,), "int32")
        self._numbers = T.alloc_buffer((4,), "int32")

    def write(self) -> None:
        """Write the sorting."""
        numbers = self._numbers
        with T.serial(0, self._count) as place:
            T.buffer_store(self.places, place, [place])
        T.buffer_store(numbers, 1, [_LENGTH])
        with T.While(numbers[_LENGTH] < self._count):
            step = 2 * numbers[_LENGTH]
            with T.serial(0, (self._count + step - 1) // step) as pair:
                self._merge(pair * step)
            with T.serial(0, self._count) as place:
                T.buffer_store(self.places, self._merged[place], [place])
            T.buffer_store(numbers, step, [_LENGTH])

    def _merge(self, start: PrimExpr) -> None:
        """Write what merges two sorted parts, of which the first begins here."""
        numbers = self._numbers
        middle = tirx.min(start + numbers[_LENGTH], self._count)
        end = tirx.min(start + 2 * numbers[_LENGTH], self._count)
        T.buffer_store(numbers, start, [_ONE])
        T.buffer_store(numbers, middle, [_OTHER])
        with T.serial(0, end - start) as place:
            T.buffer_store(numbers, tirx.Select(numbers[_ONE] < middle, 1, -1), [_SIGN])
            with T.If(tirx.all(numbers[_ONE] < middle, numbers[_OTHER] < end)), T.Then():
                self.compare(self.places[numbers[_OTHER]], self.places[numbers[_ONE]])
            for which, is_next in ((_ONE, numbers[_SIGN] >= 0), (_OTHER, numbers[_SIGN] < 0)):
                with T.If(is_next), T.Then():
                    T.buffer_store(self._merged, self.places[numbers[which]], [start + place])
                    T.buffer_store(numbers, numbers[which] + 1, [which])

    def compare(self, one: PrimExpr, other: PrimExpr) -> None:
        """Write what compares two slices: 1 if the first is larger, 0 if they are equal, else -1."""
        T.buffer_store(self._numbers, 0, [_SIGN])
        with T.serial(0, self._width) as column, T.If(self._numbers[_SIGN] == 0), T.Then():
            left, right = (self._slices[item, column] for item in (one, other))
            T.buffer_store(self._numbers, tirx.Select(left > right, 1, tirx.Select(left < right, -1, 0)), [_SIGN])

    @property
    def differs(self) -> PrimExpr:
        """Whether the slices that were compared last differ."""
        return self._numbers[_SIGN] != 0


def _by_first_slice(count: int, firsts: Buffer, groups: Buffer) -> None:
    """Write what numbers groups anew, in the order of their first slices."""
    numbers = T.alloc_buffer((count,), "int64")
    with T.serial(0, count) as place:
        T.buffer_store(numbers, _long(-1), [place])
    T.buffer_store(firsts, _long(0), [count])
    with T.serial(0, count) as place:
        group = groups[place]
        with T.If(numbers[group] < 0), T.Then():
            T.buffer_store(numbers, firsts[count], [group])
            T.buffer_store(firsts, place.astype("int64"), [firsts[count]])
            T.buffer_store(firsts, firsts[count] + _long(1), [count])
        T.buffer_store(groups, numbers[group], [place])


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
    """Return the kernel. It takes the best box that is left from a heap, and keeps it if it overlaps none that is kept.

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
        self._heap = T.alloc_buffer((told.boxes,), "int32")  # the boxes that are left, each before two that are worse
        self.numbers = T.alloc_buffer((7,), "int32")
        self._set(_TOTAL, 0)

    def write(self, batch: PrimExpr, label: PrimExpr) -> None:
        """Write the suppression of one class of one batch."""
        numbers = self.numbers
        scores = _ScoresOf(self._scores, batch, label)
        self._set(_LEFT, 0)
        self._set(_KEPT, 0)
        with T.serial(0, self._told.boxes) as box:
            enough = scores.of(box) > self._limits[1] if self._told.has_least else tirx.const(True, "bool")
            with T.If(enough), T.Then():
                T.buffer_store(self._heap, box, [numbers[_LEFT]])
                self._add(_LEFT, 1)
        with T.serial(0, numbers[_LEFT] // 2) as later:
            self._sink(scores, numbers[_LEFT] // 2 - 1 - later)
        with T.While(tirx.all(numbers[_LEFT] > 0, numbers[_KEPT] < self._told.most)):
            self._set(_BEST, self._heap[0])
            self._add(_LEFT, -1)
            T.buffer_store(self._heap, self._heap[numbers[_LEFT]], [0])
            self._sink(scores, 0)
            self._set(_STAYS, 1)
            with T.serial(0, numbers[_KEPT]) as before:
                kept = self._result[numbers[_TOTAL] - 1 - before, 2].astype("int32")
                with T.If(self._overlap(batch, numbers[_BEST], kept)), T.Then():
                    self._set(_STAYS, 0)
            with T.If(numbers[_STAYS] == 1), T.Then():
                for column, value in enumerate((batch, label, numbers[_BEST])):
                    T.buffer_store(self._result, tirx.Cast("int64", value), [numbers[_TOTAL], column])
                self._add(_TOTAL, 1)
                self._add(_KEPT, 1)

    def _sink(self, scores: _ScoresOf, place: PrimExpr | int) -> None:
        """Write what moves a box of the heap down until none that follows it is better."""
        numbers = self.numbers
        heap = self._heap
        self._set(_PARENT, place)
        with T.While(numbers[_PARENT] * 2 + 1 < numbers[_LEFT]):
            self._set(_CHILD, numbers[_PARENT] * 2 + 1)
            with T.If(numbers[_CHILD] + 1 < numbers[_LEFT]), T.Then():
                better = scores.better(heap[numbers[_CHILD] + 1], heap[numbers[_CHILD]])
                with T.If(better), T.Then():
                    self._add(_CHILD, 1)
            with T.If(scores.better(heap[numbers[_CHILD]], heap[numbers[_PARENT]])):
                with T.Then():
                    moved = T.alloc_buffer((1,), "int32", scope="local")
                    T.buffer_store(moved, heap[numbers[_PARENT]], [0])
                    T.buffer_store(heap, heap[numbers[_CHILD]], [numbers[_PARENT]])
                    T.buffer_store(heap, moved[0], [numbers[_CHILD]])
                    self._set(_PARENT, numbers[_CHILD])
                with T.Else():
                    self._set(_PARENT, numbers[_LEFT])

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
        one = self._boxes[batch, box, axis]
        other = self._boxes[batch, box, axis + 2]
        if self._told.centered:
            return one - other / 2.0, one + other / 2.0
        return tirx.min(one, other), tirx.max(one, other)

    def _set(self, which: int, value: PrimExpr | int) -> None:
        T.buffer_store(self.numbers, value, [which])

    def _add(self, which: int, value: int) -> None:
        self._set(which, self.numbers[which] + value)


@dataclass(frozen=True)
class _ScoresOf:
    """The scores of one class of one batch."""

    scores: Buffer
    batch: PrimExpr
    label: PrimExpr

    def of(self, box: PrimExpr) -> PrimExpr:
        return self.scores[self.batch, self.label, box]

    def better(self, one: PrimExpr, other: PrimExpr) -> PrimExpr:
        """Return whether a box comes before another: its score is larger, or it is the first of two that are equal."""
        same = tirx.all(self.of(one) == self.of(other), one < other)
        return tirx.any(self.of(one) > self.of(other), same)


def _long(value: int) -> PrimExpr:
    return tirx.const(value, "int64")
