"""What a program may call, and how its sizes become numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.models.hints import pytorch_hints
from autotune.tvm_backend.models.pytorch.archive import read_archive
from autotune.tvm_backend.models.pytorch.checked import checked, fix_inputs, input_names, output_names

SHAPE = {"ids": InputSpec("ids", (2, 5), "")}
ADD = '"torch.ops.aten.softmax.int"'


def fixed(path: Path, **dims: int) -> tuple[InputSpec, ...]:
    return fix_inputs(path, read_archive(path).program, {}, dims)[0]


def test_dimensions_by_name_or_by_a_shape_that_the_user_gave(words: Path) -> None:
    wanted = (InputSpec("ids", (2, 5), "int64"), InputSpec("mask", (2, 5), "float32"))
    assert fixed(words, s23=2, s27=5) == wanted
    inputs, sizes, _ = fix_inputs(words, read_archive(words).program, SHAPE, {})
    assert inputs == wanted and sizes == {"s23": 2, "s27": 5}


def test_no_size_is_advised_as_it_was_exported(words: Path) -> None:
    with pytest.raises(ModelError, match=r"'ids' \(s23xs27\).*--input ids=2x6 --input mask=2x6$"):
        fixed(words)


@pytest.mark.parametrize(
    ("dims", "line"),
    [
        ({"s23": 9, "s27": 5}, "dimension 's23' is from 0 to 8 in the exported program, not 9"),
        ({"s23": 1, "s27": 1}, "dimension 's27' is from 2 to any size in the exported program, not 1"),
        ({"rows": 1}, "has no dimension 'rows'; its open ones: s23, s27"),
    ],
)
def test_dimensions_that_the_program_does_not_have(words: Path, dims: dict[str, int], line: str) -> None:
    with pytest.raises(ModelError, match=line):
        fixed(words, **dims)


def test_shapes_that_contradict_each_other(words: Path) -> None:
    overrides = {**SHAPE, "mask": InputSpec("mask", (2, 6), "")}
    with pytest.raises(ModelError, match="input 'mask' is 2x5 in the exported program"):
        fix_inputs(words, read_archive(words).program, overrides, {})
    with pytest.raises(ModelError, match="input 'ids' is int64 in the exported program, not int32"):
        fix_inputs(words, read_archive(words).program, {"ids": InputSpec("ids", (2, 5), "int32")}, {})


def test_what_is_kept_has_no_expression_no_remark_and_no_guard(words: Path) -> None:
    program = read_archive(words).program
    kept = checked(words, program, {"s23": 2, "s27": 5})
    text = json.dumps(kept)
    assert "Symbol(" in json.dumps(program) and "stack_trace" in json.dumps(program) and program["guards_code"]
    assert "Symbol(" not in text and "stack_trace" not in text and not kept["guards_code"]
    assert kept["graph_module"]["graph"]["sym_int_values"]["mul_1"] == {"as_int": 10}
    assert input_names(words, kept) == ["ids", "mask"] and output_names(kept) == output_names(program)


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system", "torch.hub.load", "torch.ops.aten.__class__", "torch.ops.load_library",
        "_operator.attrgetter",
        "torch.ops.aten.add.__call__", "torch.ops.mine.add.default", "math.os", "#extension:x", "print", "",
        "torch.ops.aten.add.Tensor\n",
    ],
)  # fmt: skip
def test_calls_of_anything_but_operators_are_refused(altered: Callable[..., Path], target: str) -> None:
    path = altered(ADD, target if target.startswith('"') else json.dumps(target))
    with pytest.raises(ModelError, match="which is not an ATen operator"):
        checked(path, read_archive(path).program, {"s23": 2, "s27": 5})


@pytest.mark.parametrize("target", ["torch.ops.aten.from_file.default", "torch.ops.aten.save"])
def test_calls_that_touch_files_are_refused(altered: Callable[..., Path], target: str) -> None:
    path = altered(ADD, f'"{target}"')
    with pytest.raises(ModelError, match="which reads or writes files"):
        checked(path, read_archive(path).program, {"s23": 2, "s27": 5})


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('{"user_output": {', '{"buffer_mutation": {"buffer_name": "", ', r"changes its own state .*buffer_m"),
        ('{"user_input": {', '{"custom_obj": {', "is not a tensor"),
        ('"custom_obj_values": {}', '"custom_obj_values": {"a": {}}', "objects of its own classes"),
        ('{"as_tensor": {"name": "embedding"}}', '{"as_custom_obj": {}}', "objects of its own classes"),
    ],
)  # fmt: skip
def test_what_is_no_function_of_tensors_is_refused(altered: Callable[..., Path], old: str, new: str, line: str) -> None:
    path = altered(old, new)
    with pytest.raises(ModelError, match=line):
        checked(path, read_archive(path).program, {"s23": 2, "s27": 5})


def test_a_size_that_depends_on_data_is_refused(altered: Callable[..., Path]) -> None:
    path = altered("Symbol('s23'", "Symbol('u0'")
    program = json.loads(json.dumps(read_archive(path).program).replace('"hint": {"as_int": 2}', '"hint": null'))
    with pytest.raises(ModelError, match="depends on the values of its inputs"):
        checked(path, program, {"s27": 5})


def test_indices_stay_within_their_table_and_probabilities_are_known(words: Path) -> None:
    program = read_archive(words).program
    hints = pytorch_hints(program)
    assert hints.vocabularies == hints.rows == {"ids": 11}
    assert hints.probabilities == (True, False)
