"""Which blocks are products for tensor cores, and how their operands lie."""

from __future__ import annotations

import pytest
from tvm import te, tirx, topi
from tvm.s_tir import Schedule
from tvm.sym import Analyzer

from autotune.tvm_backend.cuda.products import element_of, extents_by_role, product_of, roles_of
from autotune.tvm_backend.programs import replaced

DTYPES = {"float16": "Fp16", "bfloat16": "Bf16", "float32": "Tf32", "int8": "Int8"}


def block(name, *arguments):
    schedule = Schedule(te.create_prim_func(arguments))
    return schedule.get(schedule.get_sblock(name))


def product(rows=64, terms=48, columns=40, dtype="float16", by_columns=False):
    a = te.placeholder((rows, terms), dtype, name="a")
    b = te.placeholder((columns, terms) if by_columns else (terms, columns), dtype, name="b")
    sums = "int32" if dtype == "int8" else "float32"
    k = te.reduce_axis((0, terms), "k")
    right = (lambda j: b[j, k]) if by_columns else (lambda j: b[k, j])
    return block(
        "c",
        a,
        b,
        te.compute((rows, columns), lambda i, j: te.sum(a[i, k].astype(sums) * right(j).astype(sums), k), "c"),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_type_that_they_multiply_has_its_sums(dtype):
    made = element_of(product(dtype=dtype))
    assert made is not None
    assert (made.name, made.sums) == (DTYPES[dtype], "int32" if dtype == "int8" else "float32")


def test_other_types_are_not_multiplied():
    assert element_of(product(dtype="float64")) is None
    a = te.placeholder((8, 8), "float16", name="a")
    k = te.reduce_axis((0, 8), "k")
    narrow = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * a[k, j], k), "c")
    assert element_of(block("c", a, narrow)) is None, "sums of fp16"


def test_a_product_has_rows_columns_and_terms_and_may_have_a_batch():
    assert roles_of(product()) == ["row", "column", "term"]
    a, b = (te.placeholder((3, 8, 8), "float16", name=name) for name in "ab")
    k = te.reduce_axis((0, 8), "k")
    element = lambda n, i, j: te.sum(a[n, i, k].astype("float32") * b[n, j, k].astype("float32"), k)  # noqa: E731
    assert roles_of(block("c", a, b, te.compute((3, 8, 8), element, "c"))) == ["batch", "row", "column", "term"]


def test_what_lacks_one_of_them_is_no_product():
    x = te.placeholder((16, 32), "float32", name="x")
    k = te.reduce_axis((0, 32), "k")
    assert roles_of(block("y", x, te.compute((16,), lambda i: te.sum(x[i, k] * x[i, k], k), "y"))) is None
    assert roles_of(block("y", x, te.compute((16,), lambda i: te.sum(x[i, k], k), "y"))) is None
    assert roles_of(block("y", x, te.compute((16, 32), lambda i, j: x[i, j] * 2, "y"))) is None


def convolution(channels=16):
    x = te.placeholder((2, 9, 9, channels), "float16", name="x")
    w = te.placeholder((32, 3, 3, channels), "float16", name="w")
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": "float32"}
    schedule = Schedule(te.create_prim_func([x, w, topi.nn.conv2d(x, w, 1, 1, 1, **layouts)]))
    schedule.compute_inline(schedule.get_sblock("pad_temp"))
    (name,) = (schedule.get(item).name_hint for item in schedule.get_child_blocks(schedule.get_sblock("root")))
    return schedule.get(schedule.get_sblock(name))


def test_a_convolution_is_one_whose_rows_are_pixels():
    made = convolution()
    roles = roles_of(made)
    assert roles == ["row", "row", "row", "column", "term", "term", "term"]
    assert extents_by_role(roles, made) == {"batch": [], "row": [2, 9, 9], "column": [32], "term": [3, 3, 16]}
    assert product_of(made) is None, "its axes are not fused yet"


def test_operands_say_how_many_elements_a_copy_may_take():
    rows, columns = product_of(product()), product_of(product(by_columns=True))
    assert (rows.a.by_terms, rows.a.together) == (True, 8), "16 bytes"
    assert (rows.b.by_terms, rows.b.together) == (False, 8)
    assert (columns.b.by_terms, columns.b.together) == (True, 8)
    assert product_of(product(terms=50)).a.together == 2, "rows begin at multiples of 4 bytes"
    assert product_of(product(terms=51)).a.together == 1
    assert product_of(product(terms=48, dtype="float32")).a.together == 4
    assert product_of(product(dtype="int8")).b.by_terms, "bytes of other terms do not share a word"


def test_offsets_and_conditions_are_those_of_the_program():
    made = product_of(product())
    offset = replaced(made.a.offset, made.a.side, tirx.IntImm("int32", 5))
    assert int(Analyzer().simplify(replaced(offset, made.a.term, tirx.IntImm("int32", 7)))) == 5 * 48 + 7
    assert made.a.condition is None
