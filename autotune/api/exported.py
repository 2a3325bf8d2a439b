"""An exported library: its report, and how to load it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import BadState, DamagedFile
from autotune.tvm_backend.export.folder import read_report
from autotune.tvm_backend.export.loadable import LIBRARY, REPORT

if TYPE_CHECKING:
    from autotune.tvm_backend.export.generation import LanguageModel
    from autotune.tvm_backend.export.loaded import LoadedModel


def load(folder: str | Path, threads: int = 0, *, check_weights: bool = False) -> LoadedModel | LanguageModel:
    """Load the library in a folder that an export wrote: `autotune.load("lib/")(x)`.

    Args:
        folder: The folder.
        threads: As in `Exported.load`.
        check_weights: As in `Exported.load`.

    Raises:
        BadInput: The folder has no exported model, or the library cannot be loaded in this process.
        DamagedFile: The library or its report is not what was written.
        DiskProblem: The report cannot be read.
        MachineProblem: Something that the library needs is missing here.
    """
    exported = Exported.open(folder)
    if exported.report.get("language") is not None:
        return exported.language_model(threads, check_weights=check_weights)
    return exported.load(threads, check_weights=check_weights)


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
        return cls(Path(folder), read_report(Path(folder)))

    @property
    def latency_ms(self) -> float:
        """The tuned model's latency in milliseconds at its first set of shapes: the median that the export measured.

        Raises:
            BadState: It was exported with `quick`, which times nothing.
            DamagedFile: The report has no such number.
        """
        latency = self.report.get("latency")
        if latency == {}:
            raise BadState(f"the library in {self.folder} was not timed; export it again without quick")
        tuned_ms = latency.get("tuned_ms") if isinstance(latency, dict) else None
        if isinstance(tuned_ms, bool) or not isinstance(tuned_ms, int | float):
            raise DamagedFile(f"{self.folder / REPORT} is damaged: it says no latency; export the job again")
        return float(tuned_ms)

    def load(self, threads: int = 0, *, check_weights: bool = False) -> LoadedModel:
        """Load the library into this process, if it is still what was written. Imports TVM.

        Args:
            threads: How many threads the model uses; 0 for as many as it was exported for.
            check_weights: Whether to check the large weights, too. They are read where they lie when the model first
                runs, and to read all of them before takes longer: half a second for 1 GB.

        Returns:
            The model. Call it with NumPy arrays.

        Raises:
            BadInput: The library cannot be loaded in this process.
            DamagedFile: The library or its report is not what was written.
            MachineProblem: Something that the library needs is missing here.
        """
        from autotune.tvm_backend.export.loaded import load

        return load(self.folder / LIBRARY, self.report, threads, check_weights=check_weights)

    def language_model(self, threads: int = 0, *, check_weights: bool = False) -> LanguageModel:
        """Load an exported language model into this process, to let it write tokens. Imports TVM.

        Args:
            threads: How many threads the model uses; 0 for as many as it was exported for.
            check_weights: As in `load`.

        Raises:
            BadInput: It is no language model, or cannot be loaded in this process.
            DamagedFile: The library or its report is not what was written.
            MachineProblem: Something that the library needs is missing here.
        """
        from autotune.tvm_backend.export.generation import load_language

        return load_language(self.folder / LIBRARY, self.report, threads, check_weights=check_weights)
