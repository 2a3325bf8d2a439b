"""The options of `autotune submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.storage.formats import Precision

Model = Annotated[
    Path, typer.Argument(help="An ONNX file, a file that torch.export.save wrote, or a TensorFlow Lite model.")
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="llvm (this CPU, the default), cuda, simulated, the NAME of a section devices.NAME of autotune.toml, or"
        " JSON. Several targets are a job each.",
    ),
]
Name = Annotated[str, typer.Option(help="Name of the job; by default the name of the file.")]
Trials = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="How many trials to spend. auto: until more would gain little. By default as in autotune.toml.",
    ),
]
TrialsPerRound = Annotated[int, typer.Option(min=0, help="Trials per round; 0: as in autotune.toml.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=1x3x224x224[,...][:float32]", help="Shape of an input; several shapes are one job."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=128[,...]", help="Size of the dimensions with this name; several sizes are one job."),
]
Values = Annotated[
    list[str] | None, typer.Option(metavar="NAME=16000", help="Make an input constant; 1,3,8 for a list.")
]
Priority = Annotated[int, typer.Option(help="Jobs with a higher priority go first.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the search.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Count only trials that are measured from now on.")]
Deadline = Annotated[
    str, typer.Option(metavar="HH:MM", help="When the job should be finished: 07:00, or 2026-03-01T07:00.")
]
Within = Annotated[str, typer.Option(metavar="30m", help="How long to work on it, not counting waits: 90s, 30m or 2h.")]
StopAt = Annotated[str, typer.Option(metavar="5ms", help="End when the whole model takes no longer than this.")]
OnEnd = Annotated[str, typer.Option(metavar="COMMAND", help="A command that /bin/sh runs when the job has ended.")]
Strategy = Annotated[str, typer.Option(help="Search strategy; by default as in autotune.toml.")]
Sampler = Annotated[str, typer.Option(help="greedy or adaptive; by default the strategy's own.")]
Winograd = Annotated[
    bool,
    typer.Option(
        help="Use Winograd's algorithm for 3x3 convolutions on CPUs where it should be faster. It is less exact."
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision",
        help="fp16: compute convolutions and products in fp16, with sums in fp32, for tensor cores (cuda only).",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the tasks and write nothing.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only the job's id.")]
