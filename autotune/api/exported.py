"""An exported library: its report, and how to load it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import BadInput, BadState, DamagedFile, disk_problem
from autotune.tvm_backend.export.writing.files import LIBRARY, REPORT

if TYPE_CHECKING:
    from autotune.tvm_backend.export.loaded import LoadedModel


@dataclass(frozen=True)
class Exported:
    """A folder that `export` wrote.

    Attributes:
        folder: The folder.
        report: The content of `report.json`: inputs, threads, latencies in milliseconds, and the verification.
    """

    folder: Path
    report: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Exported:
        """Read a folder that an earlier export wrote.

        Args:
            folder: The folder.

        Raises:
            BadInput: The folder has no exported model.
            DamagedFile: Its report is not JSON.
            DiskProblem: Its report cannot be read.
        """
        path = Path(folder) / REPORT
        try:
            return cls(Path(folder), dict(json.loads(path.read_bytes())))
        except FileNotFoundError:
            raise BadInput(f"{folder} holds no exported model: {path} is missing") from None
        except OSError as error:
            raise disk_problem("read", path, error) from error
        except (TypeError, ValueError) as error:  # TypeError: it is JSON, and no object
            raise DamagedFile(f"{path} is damaged: {error}") from error

    @property
    def latency_ms(self) -> float:
        """The tuned model's latency in milliseconds at its first set of shapes: the median that the export measured.

        Raises:
            BadState: It was exported with `quick`, which times nothing.
        """
        latency = self.report["latency"]
        if not latency:
            raise BadState(f"the library in {self.folder} was not timed; export it again without quick")
        return float(latency["tuned_ms"])

    def load(self, threads: int = 0) -> LoadedModel:
        """Load the library into this process. Imports TVM.

        Args:
            threads: How many threads the model uses; 0 for as many as it was exported for.

        Returns:
            The model. Call it with NumPy arrays.

        Raises:
            BadInput: The library cannot be loaded in this process.
        """
        from autotune.tvm_backend.export.loaded import load

        return load(self.folder / LIBRARY, self.report, threads)
