"""Small models of TensorFlow Lite and PyTorch, and what may go wrong in their files. For `fuzz_formats.py`."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autotune.options import InputSpec
from autotune.storage.formats import ShapeBinding

Rng = np.random.Generator
MARK = "autotune_fuzz_mark"  # in every text that would run something
_NUMBERS = (0, -1, 1, 2, 3, 7, 255, 65536, 2**31 - 1, -(2**31), 2**40, 2**63 - 1)
_BOMB = 1 << 28  # bytes of zeros


@dataclass(frozen=True)
class Seed:
    """A sound file, and the shapes that it is imported with."""

    content: bytes
    shapes: ShapeBinding = field(default_factory=ShapeBinding)


class Files:
    """Seeds and mutants.

    Args:
        canary: The file that a text or a pickle that is run would make.
    """

    def __init__(self, canary: Path) -> None:
        self._canary = canary
        touch = f"__import__('os').system('touch {canary} # {MARK}')"
        self._texts = (
            touch, f"x'); {touch}; ('", f"\n    {touch}\n", f"Symbol({touch})", f"Integer({touch})", f"{touch} = 1",
            "os.system", "builtins.eval", "torch.ops.aten.from_file.default", "torch.ops.aten.save.default",
            "torch.ops.prim.Print.default", "torch.ops.aten.__class__.default", "_operator.call", "torch.load",
            "torch.ops.higher_order.map", "../../etc/passwd", "", "\x1b[2J", "a" * 5000, "\0", "\ud800", "9" * 5000,
            "Add(" * 300 + ")" * 300, "Mul(Integer(99999999999),Integer(99999999999))", "weight_0", "tensor_0",
        )  # fmt: skip

    def of_lite(self, seed: bytes, rng: Rng) -> bytes:
        """The bytes of a flatbuffer with one to four things wrong: in its objects or, a third, in its bytes."""
        from autotune.tvm_backend.models.tflite.flatbuffer import packed, unpacked

        if rng.random() < 1 / 3:
            return spoilt(seed, rng)
        model = unpacked(seed)
        for _ in range(rng.integers(1, 5)):
            self._change_object(model, rng)
        try:
            return packed(model)
        except Exception:  # what no file can hold
            return spoilt(seed, rng)

    def of_torch(self, seed: bytes, rng: Rng) -> bytes:
        """The bytes of an archive with one to four things wrong: in its tables, its members or, a fourth, its bytes."""
        if rng.random() < 1 / 4:
            return spoilt(seed, rng)
        with zipfile.ZipFile(io.BytesIO(seed)) as opened:
            members = {name: opened.read(name) for name in opened.namelist()}
        for _ in range(rng.integers(1, 5)):
            self._change_member(members, rng)
        written = io.BytesIO()
        bomb = any(len(data) >= _BOMB for data in members.values())
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED if bomb else zipfile.ZIP_STORED) as target:
            for name, data in members.items():
                target.writestr(name, data)
        return written.getvalue()

    def _change_object(self, model: Any, rng: Rng) -> None:
        places = list(_fields(model))
        owner, name = places[rng.integers(len(places))]
        value = getattr(owner, name)
        if isinstance(value, bool | int | np.integer):
            setattr(owner, name, _any(_NUMBERS, rng))
        elif isinstance(value, bytes | str):
            setattr(owner, name, _any(self._texts, rng))
        elif isinstance(value, list | np.ndarray) and len(value):
            setattr(owner, name, self._changed_list(list(value), rng))
        else:
            setattr(owner, name, None)

    def _changed_list(self, items: list[Any], rng: Rng) -> list[Any]:
        at = int(rng.integers(len(items)))
        match rng.integers(4):
            case 0:
                return items[:at] + items[at + 1 :]
            case 1:
                return [*items, copy.copy(items[at])]
            case 2:
                return items[::-1]
        if isinstance(items[at], int | np.integer):
            items[at] = _any(_NUMBERS, rng)
        return items

    def _change_member(self, members: dict[str, bytes], rng: Rng) -> None:
        names = list(members)
        name = names[rng.integers(len(names))]
        tables = [item for item in names if item.endswith(".json")]
        if rng.random() < 0.7 and tables:
            table = tables[rng.integers(len(tables))]
            members[table] = self._changed_table(members[table], rng)
            return
        match rng.integers(6):
            case 0:
                members[name] = self._pickle()
            case 1:
                del members[name]
            case 2:
                beside = str(_any(("data.pkl", "model.pt", "../../x", "code.py"), rng))
                members[f"{name.rpartition('/')[0]}/{beside}"] = self._pickle()
            case 3 if rng.random() < 0.2:
                members[name] = bytes(_BOMB)
            case 4:
                members[name] = members.pop(name)[::-1]
            case _:
                members[name] = spoilt(members[name], rng)

    def _changed_table(self, data: bytes, rng: Rng) -> bytes:
        try:
            table = json.loads(data)
        except ValueError:
            return data
        places = list(_places(table))
        if not places:
            return data
        owner, key = places[rng.integers(len(places))]
        match rng.integers(6):
            case 0:
                owner[key] = _any(_NUMBERS, rng)
            case 1 | 2:
                owner[key] = _any(self._texts, rng)
            case 3:
                del owner[key]
            case 4:
                other, from_key = places[rng.integers(len(places))]
                owner[key] = copy.deepcopy(other[from_key]) if len(places) < 10_000 and key != from_key else None
            case _:
                owner[key] = _any((None, True, [], {}, [owner[key]], {"as_expr": {"expr_str": self._texts[0]}}), rng)
        try:
            return json.dumps(table).encode()
        except ValueError:  # it holds itself
            return data

    def _pickle(self) -> bytes:
        return pickle.dumps(_Runs(f"touch {self._canary} # {MARK}"))


class _Runs:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self._command,)


def _any(items: Sequence[Any], rng: Rng) -> Any:
    return items[rng.integers(len(items))]


def _fields(owner: Any) -> Iterator[tuple[Any, str]]:
    """The fields of an object of the schema and of those in it."""
    for name, value in vars(owner).items():
        yield owner, name
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "__dict__"):
                yield from _fields(item)


def _places(table: Any) -> Iterator[tuple[Any, Any]]:
    """The places of a JSON document, as what holds a value and its key there."""
    items = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in items:
        yield table, key
        yield from _places(value)


def spoilt(data: bytes, rng: Rng) -> bytes:
    """The bytes of any file with one to four of them flipped, cut, cleared, repeated or overwritten by a number."""
    for _ in range(rng.integers(1, 5)):
        if not data:
            return data
        at = int(rng.integers(len(data)))
        match rng.integers(5):
            case 0:
                data = data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
            case 1:
                data = data[: max(at, 8)]
            case 2:
                data = data[:at] + bytes(min(16, len(data) - at)) + data[at + 16 :]
            case 3:
                data = data[:at] + data[max(0, at - 64) : at] + data[at:]
            case _:
                number = int(_any(_NUMBERS, rng)) & 0xFFFFFFFF
                data = data[: at & ~3] + number.to_bytes(4, "little") + data[(at & ~3) + 4 :]
    return data


def lite_seeds() -> list[Seed]:
    """Small sound flatbuffers: convolution, product in bytes, moves, a kept value and a computed shape."""
    from lite_models import computed_shape, convolution, kept_value, moves, quantised_product

    return list(map(Seed, (convolution(), quantised_product(), moves(), kept_value(), computed_shape())))


def torch_seeds() -> list[Seed]:
    """Small sound programs: a convolution, layers with an open dimension, and a lookup with a branch of sizes."""
    import torch

    class Lookup(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)

        def forward(self, ids: Any) -> Any:
            return self.table(ids).reshape(ids.shape[0], -1) * ids.shape[1]

    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4), torch.nn.Softmax(-1))
    given = ShapeBinding(inputs=(InputSpec("input", (2, 8), ""),))
    rows = torch.export.Dim("rows", min=1, max=64)
    exported = [
        torch.export.export(convolution, (torch.zeros(1, 3, 8, 8),)),
        torch.export.export(layers.eval(), (torch.zeros(2, 8),), dynamic_shapes=({0: rows},)),
        torch.export.export(Lookup().eval(), (torch.zeros(2, 4, dtype=torch.int64),)),
    ]
    seeds = []
    for program, shapes in zip(exported, (ShapeBinding(), given, ShapeBinding()), strict=True):
        written = io.BytesIO()
        torch.export.save(program, written)
        seeds.append(Seed(written.getvalue(), shapes))
    return seeds
