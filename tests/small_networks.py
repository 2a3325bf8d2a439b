"""Tuning tasks of the small networks that `scripts/models` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_models


def tasks_of(name: str, folder: Path, target: dict[str, Any]) -> list[Any]:
    """The tasks of a network for a CPU. Its file is written to a folder."""
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    import onnx
    import tvm

    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.models.onnx.read import read_model
    from autotune.tvm_backend.search.tasks import extract_tasks

    path = folder / f"{name}.onnx"
    onnx.save(make_models.build(name), str(path))
    built = tvm.target.Target(target)
    return extract_tasks(prepare(read_model(path, {}).module, built), built)
