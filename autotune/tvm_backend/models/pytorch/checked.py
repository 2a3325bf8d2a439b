"""An exported program as data, checked to be nothing but arithmetic on tensors, with all of its sizes fixed.

torch calls whatever function of its own a program names, and evaluates the expressions and guards in it. So only
operators of ATen and the arithmetic of sizes pass, expressions become numbers, and what is not needed is left out.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.storage.formats import OpenBatch
from autotune.tvm_backend.models.model import OpenInput, open_batches, resolve

_TARGET = re.compile(
    r"torch\.ops\.aten\.((?!__)\w+|__(and|or|xor|lshift|rshift)__)(\.(?!_)\w+)?"
    r"|torch\.ops\.higher_order\.(cond|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|torch\.sym_(float|int|ite|max|min|not|sqrt)|math\.(ceil|floor|trunc)"
    r"|_operator\.(add|and_|eq|floordiv|ge|getitem|gt|le|lt|mod|mul|ne|neg|not_|or_|pow|sub|truediv)",
    re.ASCII,
)
_FILES = frozenset({"from_file", "save"})  # operators of ATen that read and write files
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 12: "bool",
}  # fmt: skip
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
_CPU = {"type": "cpu", "index": None}
_SIGNS = {"Add": "+", "Mul": "*"}
_WEIGHTS = frozenset({"parameter", "buffer", "tensor_constant"})


def fix_inputs(
    path: Path, program: Mapping[str, Any], overrides: Mapping[str, InputSpec], dims: Mapping[str, int]
) -> tuple[tuple[InputSpec, ...], dict[str, int], tuple[OpenBatch, ...]]:
    """Give every input of a program its shape.

    Args:
        overrides: Shapes that the user gave, by the name of the input.
        dims: Sizes that the user gave, by the name of the open dimension.

    Returns:
        The inputs in order, the sizes of all open dimensions by name, and the open batches that were taken as 1.

    Raises:
        ModelError: An input or a dimension does not exist, has no size, or has one that the program does not allow.
    """
    shapes = {name: _values(program)[name]["sizes"] for name in input_names(path, program)}
    try:
        names = list(dict.fromkeys(name for text in _expressions(shapes) for name in dimensions(text)))
        if unknown := sorted(set(dims) - set(names)):
            raise ModelError(f"{path} has no dimension {unknown[0]!r}; its open ones: {', '.join(names) or 'none'}")
        sizes = {**_from_overrides(shapes, overrides), **dims}
        free = _free(path, program, shapes, sizes)
        batches = open_batches(free, overrides, {})
        if not all(_may_be_one(program, batch.dim) for batch in batches):
            batches = ()
        sizes |= {batch.dim: 1 for batch in batches}
        free = _free(path, program, shapes, sizes)
    except ValueError as error:
        raise ModelError(f"{path}: a size of an input is computed in a way that is not supported: {error}") from error
    inputs = resolve(path, free, overrides, {}, examples=_examples(shapes))
    for item, before in zip(inputs, free, strict=True):
        _check_shape(path, item, before)
    _check_ranges(path, program, sizes)
    return inputs, sizes, batches


def _free(
    path: Path, program: Mapping[str, Any], shapes: Mapping[str, Any], sizes: Mapping[str, int]
) -> list[OpenInput]:
    return [OpenInput(name, _dtype(path, program, name), _dims(shape, sizes)) for name, shape in shapes.items()]


def _may_be_one(program: Mapping[str, Any], dimension: str) -> bool:
    limits = program["range_constraints"].get(dimension, {})
    return (limits.get("min_val") or 0) <= 1


def checked(path: Path, program: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return a copy of a program with what it takes to compute, and no open dimension.

    Raises:
        ModelError: It calls something other than ATen's operators, or is no function of its inputs alone.
    """
    module = program["graph_module"]
    _check_signature(path, module["signature"])
    if module["graph"].get("custom_obj_values"):
        raise ModelError(f"{path} has objects of its own classes, which autotune does not load")
    graph = _copied(path, module["graph"], sizes)
    return {
        **{key: program[key] for key in ("opset_version", "schema_version", "verifiers", "torch_version")},
        "range_constraints": {},
        "guards_code": [],
        "graph_module": {
            "graph": graph,
            "signature": module["signature"],
            "module_call_graph": [_flat_call(len(input_names(path, program)), len(output_names(program)))],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
    }


def input_names(path: Path, program: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs in order, without the weights."""
    names = []
    for spec in program["graph_module"]["signature"]["input_specs"]:
        ((kind, item),) = spec.items()
        if kind in _WEIGHTS:
            continue
        if kind != "user_input" or set(item["arg"]) != {"as_tensor"}:
            name = item.get("name") or next(iter(item.get("arg", {}).values()), kind)
            raise ModelError(f"{path}: input {name!r} is not a tensor; export the program without it")
        names.append(str(item["arg"]["as_tensor"]["name"]))
    return names


def output_names(program: Mapping[str, Any]) -> list[str]:
    """Return the names of the outputs in order."""
    specs = program["graph_module"]["signature"]["output_specs"]
    return [str(spec["user_output"]["arg"]["as_tensor"]["name"]) for spec in specs]


def _values(program: Mapping[str, Any]) -> Mapping[str, Any]:
    values: Mapping[str, Any] = program["graph_module"]["graph"]["tensor_values"]
    return values


def _expressions(shapes: Mapping[str, Any]) -> list[str]:
    return [str(size["as_expr"]["expr_str"]) for sizes in shapes.values() for size in sizes if "as_expr" in size]


def _from_overrides(shapes: Mapping[str, Any], overrides: Mapping[str, InputSpec]) -> dict[str, int]:
    """The sizes of open dimensions that follow from shapes which the user gave."""
    dims: dict[str, int] = {}
    for name, sizes in shapes.items():
        shape = overrides[name].shape if name in overrides else ()
        for size, number in zip(sizes, shape, strict=False):
            text = str(size["as_expr"]["expr_str"]) if "as_expr" in size else ""
            if text and evaluate(text, {}) in list(dimensions(text)):
                dims.setdefault(str(evaluate(text, {})), number)
    return dims


def _dims(shape: list[Any], sizes: Mapping[str, int]) -> tuple[int | str, ...]:
    return tuple(
        evaluate(size["as_expr"]["expr_str"], sizes) if "as_expr" in size else int(size["as_int"]) for size in shape
    )


def _examples(shapes: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the inputs that the program was exported with, by the text of the open dimension."""
    examples = {}
    for size in (size for sizes in shapes.values() for size in sizes if "as_expr" in size):
        hint = (size["as_expr"].get("hint") or {}).get("as_int")
        if hint:
            examples[str(evaluate(size["as_expr"]["expr_str"], {}))] = int(hint)
    return examples


def _dtype(path: Path, program: Mapping[str, Any], name: str) -> str:
    dtype = _values(program)[name]["dtype"]
    if dtype not in _DTYPES:
        raise ModelError(f"{path}: input {name!r} has a type that NumPy lacks (torch's number {dtype})")
    return _DTYPES[dtype]


def _check_shape(path: Path, item: InputSpec, before: OpenInput) -> None:
    if item.dtype != before.dtype:
        raise ModelError(f"{path}: input {item.name!r} is {before.dtype} in the exported program, not {item.dtype}")
    if before.fixed is not None and item.shape != before.fixed:
        shown = "x".join(map(str, before.fixed))
        raise ModelError(
            f"{path}: input {item.name!r} is {shown} in the exported program; for other shapes export it with"
            " dynamic_shapes"
        )


def _check_ranges(path: Path, program: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    for name, limits in program["range_constraints"].items():
        low = limits.get("min_val")
        high = limits.get("max_val")
        size = sizes.get(name)
        if size is not None and (size < (low or 0) or (high is not None and size > high)):
            raise ModelError(
                f"{path}: dimension {name!r} is from {low or 0} to {high or 'any size'} in the exported program,"
                f" not {size}"
            )


def _check_signature(path: Path, signature: Mapping[str, Any]) -> None:
    for spec in signature["output_specs"]:
        ((kind, item),) = spec.items()
        if kind != "user_output":
            raise ModelError(f"{path} changes its own state as it runs ({kind}), which a compiled model cannot")
        if set(item["arg"]) != {"as_tensor"}:
            raise ModelError(f"{path} returns something that is not a tensor; export the program without it")


def _copied(path: Path, value: Any, sizes: Mapping[str, int]) -> Any:
    """Copy a part of a program: sizes become numbers, devices the CPU, remarks are left out, and calls are checked."""
    if isinstance(value, list):
        return [_copied(path, item, sizes) for item in value]
    if not isinstance(value, dict):
        return value
    if "as_expr" in value:
        return _number(path, value["as_expr"], sizes)
    copied: dict[str, Any] = {}
    for key, item in value.items():
        if key in ("target", "as_operator") and item is not None:
            _check_target(path, item)
        if key in ("as_custom_obj", "as_opaque"):
            raise ModelError(f"{path} has objects of its own classes, which autotune does not load")
        if key in ("device", "as_device") and isinstance(item, dict):
            copied[key] = _CPU
        else:
            copied[key] = {} if key == "metadata" else _copied(path, item, sizes)
    return copied


def _number(path: Path, item: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """The value of an expression.

    One that is more than sums and products keeps the value of the example: torch computes the shapes inside the
    program again, from those of its inputs.
    """
    try:
        value = evaluate(str(item["expr_str"]), sizes)
    except ValueError:
        value = ""
    if isinstance(value, int):
        return {"as_int": value}
    if not item.get("hint"):
        raise ModelError(f"{path} has a size that depends on the values of its inputs ({item['expr_str']})")
    return item["hint"]


def _check_target(path: Path, target: Any) -> None:
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise ModelError(f"{path} calls {target!r}, which is not an ATen operator")
    if target.split(".")[3:4] and target.split(".")[3] in _FILES:
        raise ModelError(f"{path} calls {target!r}, which reads or writes files")


def _flat_call(inputs: int, outputs: int) -> dict[str, Any]:
    """How the program is called: with its inputs one after the other; it returns a tuple of its outputs."""
    taken = _tuple([_tuple([_LEAF] * inputs), {"type": "builtins.dict", "context": "[]", "children_spec": []}])
    specs = {"in_spec": json.dumps([1, taken]), "out_spec": json.dumps([1, _tuple([_LEAF] * outputs)])}
    return {"fqn": "", "signature": {"inputs": [], "outputs": [], **specs, "forward_arg_names": None}}


def _tuple(children: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "builtins.tuple", "context": "null", "children_spec": children}


def evaluate(text: str, sizes: Mapping[str, int]) -> int | str:
    """Return the value of an expression of sizes, or a short form of it where an open dimension in it has no size.

    torch writes it as calls of SymPy's constructors, such as `Mul(Integer(2), Symbol('s77', positive=True))`, and its
    loader hands it to Python's `eval`. Here it is read, and not evaluated as code.

    Raises:
        ValueError: It is more than sums and products of open dimensions.
    """
    return _value(_parsed(text), sizes)


def dimensions(text: str) -> Iterator[str]:
    """Yield the names of the open dimensions in an expression.

    Raises:
        ValueError: As for `evaluate`.
    """
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol":
            yield str(_value(node, {}))


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no size") from error


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int | str:
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or not tree.args:
        raise ValueError(f"{ast.unparse(tree)!r} is no size")
    kind = tree.func.id
    if kind in _SIGNS:
        terms = [_value(term, sizes) for term in tree.args]
        numbers = [term for term in terms if isinstance(term, int)]
        if len(numbers) < len(terms):
            return _SIGNS[kind].join(map(str, terms))
        return math.prod(numbers) if kind == "Mul" else sum(numbers)
    argument = tree.args[0]
    literal = argument.value if isinstance(argument, ast.Constant) else None
    if kind == "Integer" and isinstance(literal, int):
        return literal
    if kind == "Symbol" and isinstance(literal, str):
        return sizes.get(literal, literal)
    raise ValueError(f"{ast.unparse(tree)!r} is no sum or product of open dimensions")
