"""Checks of files before TVM reads them, because its readers make any object that a file names, code included.

A tensor program and a schedule trace are data, but they can smuggle in code in two ways. TVM's JSON may name any
registered type, `ffi.Module` (a compiled library) among them. And a trace may annotate a loop with a pragma such as
`pragma_import_llvm`, whose text the code generator compiles and links. So only the types that programs consist of and
the annotations that MetaSchedule's own rules make are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from autotune.tvm_backend.types import PlainTrace

# Node types that hold data only. `ffi.Module` would load compiled code, and functions are called.
_DATA_TYPES = re.compile(
    r"None|int|bool|float|(ffi\.)?(DataType|Device)|ffi\.(Array|List|Map|Dict|(Small)?(String|Str|Bytes)|Shape|Tensor)"
    r"|(?!ir\.EnvFunc$)(ir|prim|tirx?|s_tir|relax|arith|target)(\.\w+)+"
)
# Annotations that the schedule rules and postprocessors in TVM's src/s_tir/meta_schedule make.
_ANNOTATIONS = re.compile(
    r"meta_schedule\.\w+|pragma_auto_unroll_max_step|pragma_unroll_explicit|software_pipeline_(stage|order|async_stages)"
    r"|permuted_layout|vector_bytes|local_stage|double_buffer_scope|tirx\.manifest_shared_memory_local_stage|warp_execution"
)


def check_graph(text: str) -> None:
    """Make sure that TVM's JSON makes nothing but data.

    Raises:
        ValueError: It is not such JSON, or names a type that is not allowed.
    """
    try:
        types = [str(node["type"]) for node in json.loads(text)["nodes"]]
    except (KeyError, TypeError, RecursionError):
        raise ValueError("it is not TVM's JSON") from None
    if forbidden := [name for name in types if not _DATA_TYPES.fullmatch(name)]:
        raise ValueError(f"a program has no {forbidden[0]}")


def check_trace(trace: PlainTrace) -> None:
    """Make sure that a trace, as in a tuning record, makes nothing but a schedule.

    Raises:
        ValueError: It is not a trace, has an annotation that no rule makes, or holds an object that is not allowed.
    """
    try:
        for kind, _, attributes, _ in trace[0]:
            if kind == "Annotate" and not _ANNOTATIONS.fullmatch(attributes[0]):
                raise ValueError(f"no rule annotates {attributes[0]!r}")
    except (TypeError, IndexError, KeyError):
        raise ValueError("it is no trace") from None
    for text in _texts(trace):
        if text.lstrip().startswith("{"):  # an object, which TVM makes while it reads the trace
            check_graph(text)


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in nested containers, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
