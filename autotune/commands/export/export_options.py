"""What can be asked of an export: the options, how a command line gives them, and which contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from autotune import devices
from autotune.errors import BadInput
from autotune.options import AUTO
from autotune.processes.messages import ExportRequest
from autotune.regular_file import check_readable
from autotune.storage.formats import JobSpec

Inputs = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE.npz", help="Arrays to verify on, by input name; random by default. One file per shape."),
]
Source = Annotated[
    bool, typer.Option("--source", help="Also write the network as C++ source, which needs no runtime (CPUs only).")
]
Untuned = Annotated[
    bool, typer.Option("--untuned", help="Also time the model with TVM's default schedules: up to minutes.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Write the library as soon as it is verified, and time nothing.")]
Retime = Annotated[
    bool,
    typer.Option(
        "--retime", help="Time the best kernels again though the queue has timed them as in the model: a minute."
    ),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="Compile, verify and time it though nothing has changed since it was exported last."),
]
Frozen = Annotated[
    bool,
    typer.Option("--frozen", help="Make the library again by the folder's autotune.lock: choose and time nothing."),
]
Threads = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="For how many threads the library is. auto: as many as make it fastest. By default as it was tuned.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is asked of an export.

    Attributes:
        inputs: NPZ files with inputs to verify and to time on, by name, each for one set of shapes of the job. Others
            are random.
        source: Whether to write the network as C++ source, too.
        untuned: Whether to time the model with TVM's default schedules, too.
        quick: Whether to write the library as soon as it is verified, and to time nothing.
        retime: Whether to time the best candidates of each task again though the queue has timed them in the context
            of the model.
        again: Whether to compile, verify and time it again though nothing has changed since the last export of the job.
            Else what that wrote is written again.
        frozen: Whether to make the library again by the lock file in the folder: every choice is in it, and nothing is
            timed.
        threads: For how many threads the library is; `auto` for that of 1, 2, 4 and all on which it is fastest. By
            default all.
    """

    inputs: Sequence[Path] = ()
    source: bool = False
    untuned: bool = False
    quick: bool = False
    retime: bool = False
    again: bool = False
    frozen: bool = False
    threads: int | Literal["auto"] | None = None

    def check(self, spec: JobSpec, max_threads: int) -> None:
        """Check that options do not contradict each other, nor the job.

        Raises:
            BadInput: Some do, or a file of inputs cannot be read.
        """
        untimed = "--frozen" if self.frozen else "--quick" if self.quick else ""
        if untimed:
            self._check_untimed(untimed)
        if self.threads is not None:
            _check_threads(self.threads, spec, max_threads)
        for file in self.inputs:
            check_readable(file)

    def _check_untimed(self, option: str) -> None:
        """Check that an export that times nothing, by an option, is not to time something."""
        if self.untuned:
            raise BadInput(f"--untuned times the untuned model, and {option} times nothing; give one of them")
        if self.retime:
            raise BadInput(f"--retime times the best kernels again, and {option} times nothing; give one of them")
        if self.threads == AUTO:
            raise BadInput(f"--threads auto times the library, and {option} times nothing; give one of them")

    def check_commands(self) -> None:
        """Check that no option is given that is for models.

        Raises:
            BadInput: One is.
        """
        if replace(self, again=False) != ExportOptions():
            flags = [f"--{option.name}" for option in fields(self) if option.name != "again"]
            raise BadInput(f"{', '.join(flags[:-1])} and {flags[-1]} are for models; commands are exported as they are")

    def apply(self, request: ExportRequest) -> ExportRequest:
        """Return the request for an export with these options."""
        asked = replace(
            request,
            source=self.source,
            untuned=self.untuned,
            quick=self.quick,
            fewer_threads=self.threads == AUTO,
        )
        return replace(asked, threads=self.threads) if isinstance(self.threads, int) else asked


def _check_threads(threads: int | Literal["auto"], spec: JobSpec, most: int) -> None:
    if not devices.kind_of(spec).is_local_cpu:
        raise BadInput("--threads is for the CPUs of this machine")
    if threads != AUTO and not 1 <= threads <= most:
        raise BadInput(f"--threads {threads}: give auto, or a number from 1 to {most}")
