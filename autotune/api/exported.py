"""An exported library: what `report.json` says of it, and how to load it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import BadInput, DamagedFile, disk_problem

if TYPE_CHECKING:
    from autotune.tvm_backend.export.loaded import LoadedModel

_LIBRARY, _REPORT = "model.so", "report.json"


@dataclass(frozen=True)
class Exported:
    """A folder that `export` wrote.

    Attributes:
        folder: the folder.
        report: the content of `report.json`: inputs, threads, latencies in milliseconds, and the verification.
    """

    folder: Path
    report: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Exported:
        """Read a folder that an earlier export wrote.

        Raises:
            BadInput: the folder holds no exported model.
            DamagedFile: its report is not JSON.
        """
        path = Path(folder) / _REPORT
        try:
            return cls(Path(folder), dict(json.loads(path.read_bytes())))
        except FileNotFoundError:
            raise BadInput(f"{folder} holds no exported model: {path} is missing") from None
        except OSError as error:
            raise disk_problem("read", path, error) from error
        except ValueError as error:
            raise DamagedFile(f"{path} is damaged: {error}") from error

    @property
    def latency_ms(self) -> float:
        """The median latency of the tuned model, in milliseconds, as measured when it was exported."""
        return float(self.report["latency"]["tuned_ms"])

    def load(self, threads: int = 0) -> LoadedModel:
        """Load the library into this process. Imports TVM's runtime.

        Args:
            threads: threads that the model runs on; 0: as many as it was exported for.

        Raises:
            BadInput: the library cannot be loaded here.
        """
        from autotune.tvm_backend.export.loaded import load

        return load(self.folder / _LIBRARY, self.report, threads)
