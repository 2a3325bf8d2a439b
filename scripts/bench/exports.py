"""Folders that `autotune export` wrote, as the benchmarks need them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.options import InputSpec
from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.drawn_inputs import draw
from autotune.tvm_backend.export.loadable import LIBRARY, REPORT
from autotune.tvm_backend.export.timing.comparison import Runtime
from autotune.tvm_backend.models.hints import Hints, onnx_hints
from autotune.tvm_backend.models.onnx.read import parse_file

_SEED = 2026


@dataclass(frozen=True)
class Export:
    """An exported model: its folder, and the content of its `report.json`."""

    folder: Path
    report: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Export:
        path = folder / REPORT
        try:
            return cls(folder, json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "this is not JSON"
            sys.exit(f"cannot read {path}: {reason}; name a folder that `autotune export` wrote")

    @property
    def model(self) -> Path:
        """What the library computes: the quantised model where the job was calibrated."""
        path = Path(self.report.get("quantised_model") or self.report["model"])
        if not path.exists():
            sys.exit(f"{self.folder}: its model {path} is not there, seen from {Path.cwd()}")
        return path

    @property
    def threads(self) -> int:
        return int(self.report["threads"])

    @property
    def inputs(self) -> list[InputSpec]:
        return [InputSpec(item["name"], tuple(item["shape"]), item["dtype"]) for item in self.report["inputs"]]

    def arrays(self) -> runners.Arrays:
        """Return a value for each input, the same every time."""
        return draw(self.inputs, _SEED, self.hints)

    @property
    def hints(self) -> Hints:
        """What the model says of its inputs and outputs."""
        return onnx_hints(parse_file(self.model))

    @property
    def library(self) -> Runtime:
        """The library as a runtime that can be timed."""
        device = "cuda" if self.report["target"]["kind"] == "cuda" else "cpu"
        return Runtime("library", self.folder / LIBRARY, device)
