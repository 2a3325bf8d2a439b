"""The command `submit`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune import strategies
from autotune.commands.submit.publish import Submission, preview, strategy_falls_back, submit_each
from autotune.commands.submit.words import input_words, parse_inputs, read_options, shape_text, takes_options
from autotune.commands.terminal import Json, say, show, steps, tell, workspace_of
from autotune.config import load_config
from autotune.errors import BadInput, OpenShapes, one_line
from autotune.options import InputSpec, TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.storage import formats
from autotune.storage.formats import JobSpec, KeptValue, OpenBatch

_TOLD = 1e-3  # of the own error of a model
_DECIDES = {  # what a job is verified by, the most telling first
    "choices": "an export is verified up to each of its choices, as by TopK, and from there on",
    "float32": "an export has to be as near as that to the same weights in float32",
    "runtime": "an export may be as far from it",
}


@takes_options
def command(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            help="An ONNX file, a file that torch.export.save wrote, a TensorFlow Lite model, or a GGUF file."
        ),
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the tasks and write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Take the shapes that are advised for open inputs.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the job's id.")] = False,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Read a model, extract its tuning tasks and put a job into the queue."""
    workspace = workspace_of(context)
    config = load_config(workspace.config)
    targets = given.pop("target") or [TuningOptions.target]
    options = read_options(given)
    _check_targets(targets, options.name)
    submissions = [Submission(model, replace(options, target=target)) for target in targets]

    def read(submissions: Sequence[Submission]) -> None:
        if dry_run:
            with steps(quiet) as step:
                previews = [preview(submission, config, step) for submission in submissions]
            _tell_previews(previews, quiet, as_json)
        else:
            with steps(quiet) as step:
                specs = submit_each(workspace, config, submissions, step)
            _tell_jobs(specs, quiet, as_json)

    try:
        read(submissions)
    except OpenShapes as error:
        if not yes:
            _offer(error, quiet or as_json)
        say(f"taken as advised: {shlex.join(input_words(error.advised))}")
        read([_with_inputs(submission, parse_inputs(error.advised)) for submission in submissions])
    if strategy_falls_back(submissions[0], config) and not quiet:
        other = strategies.DEFAULT
        say(f"[search] strategy {config.search.strategy} works on schedules of TVM; commands are tuned with {other}")


def _offer(error: OpenShapes, quiet: bool) -> None:
    """Offer the advised shapes to the user of a terminal; return if they are taken.

    Raises:
        OpenShapes: There is nobody to ask.
        typer.Exit: They are not taken.
    """
    if quiet or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise error
    say(one_line(error))
    if not typer.confirm("take this?", default=True, err=True):
        raise typer.Exit(error.exit_code)


def _with_inputs(submission: Submission, inputs: Mapping[str, tuple[InputSpec, ...]]) -> Submission:
    return replace(submission, options=replace(submission.options, inputs={**submission.options.inputs, **inputs}))


def _check_targets(targets: Sequence[str], name: str | None) -> None:
    if twice := [target for target in targets if targets.count(target) > 1]:
        raise BadInput(f"--target {twice[0]} is given twice; give each target once")
    if name is not None and len(targets) > 1:
        raise BadInput("--name is for one job, and each --target is one; leave --name out, or submit one by one")


def _tell_previews(previews: Sequence[ImportAnswer], quiet: bool, as_json: bool) -> None:
    for imported in previews:
        if as_json:
            tell(json.dumps(formats.to_json(imported)))
            continue
        from autotune.commands import render

        show(render.preview(imported))
        for line in [] if quiet else batch_lines(imported.open_batches):
            say(line)


def _tell_jobs(specs: Sequence[JobSpec], quiet: bool, as_json: bool) -> None:
    """Tell which jobs there are. They are in the queue, so that it is no failure if they cannot be told."""
    try:
        for spec in specs:
            _tell_job(spec, quiet, as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what could not be written, and is written at the end
        ids = ", ".join(str(spec.id) for spec in specs)
        say(f"autotune: in the queue as {ids}, which cannot be written to standard output: {error.strerror}")


def _tell_job(spec: JobSpec, quiet: bool, as_json: bool) -> None:
    if as_json:
        about = {"id": spec.id, "name": spec.name, "tasks": len(spec.tasks)}
        budget = {"trials": spec.trials, "automatic": spec.automatic}
        verified = {"own_error": spec.own_error, "verified_by": spec.verified_by, "problem": spec.problem}
        state = [asdict(item) for item in spec.state]
        tell(json.dumps({**about, **budget, **verified, "state": state}))
        return
    tell(str(spec.id))
    if not quiet:
        shapes = f"{len(spec.entries)} sets of shapes, " if spec.entries else ""
        most = "at most " if spec.automatic else ""
        precision = "" if spec.precision == "fp32" else f" in {spec.precision}"
        budget_text = f"{most}{spec.trials} trials"
        say(f"job {spec.id} ({spec.name}): {shapes}{len(spec.tunable)} tasks to tune{precision}, {budget_text}")
        quantised = [f"in int8, {spec.quantisation.text()}"] if spec.quantisation else []
        for line in [*quantised, *batch_lines(spec.open_batches), *state_lines(spec.state), *verification_lines(spec)]:
            say(line)
        if spec.trials < len(spec.tunable):
            say(f"warning: {spec.trials} trials do not reach all {len(spec.tunable)} tasks; give more --trials")


def batch_lines(batches: Sequence[OpenBatch]) -> list[str]:
    """Return the line about open batches that were taken as 1, if there are any: how to give another."""
    if not batches:
        return []
    named = dict.fromkeys(batch.dim for batch in batches if batch.dim)
    words = [word for dim in named for word in ("--dim", f"{dim}=8")]
    unnamed = [f"{batch.input}=8x{shape_text(batch.shape[1:])}" for batch in batches if not batch.dim]
    words += input_words(text.removesuffix("xscalar") for text in unnamed)
    names = ", ".join(repr(batch.input) for batch in batches)
    return [f"the batch of {names} is open and is taken as 1; for one of 8, say, add {shlex.join(words)}"]


def state_lines(state: Sequence[KeptValue]) -> list[str]:
    """Return the lines about what a model keeps from run to run, if it keeps anything."""
    if not state:
        return []
    lines = [f"  {item.output} -> {item.input}, all {item.first:g} before the first run" for item in state]
    return ["the model keeps values from run to run; hand these outputs back in as inputs of the next run:", *lines]


def verification_lines(spec: JobSpec) -> list[str]:
    """Return the line about what an export of a job will be verified by, if it is not simply the model's runtime."""
    if spec.problem:
        return [f"warning: an export would be refused as it is: {spec.problem}"]
    own = max(spec.own_error, default=0.0)
    if own < _TOLD:
        return []
    what = (
        f"its own runtime is {own:.1%} from itself on random inputs: by optimisations, threads and last bits of inputs"
    )
    if "nothing" in spec.verified_by:
        advice = "export it with your inputs (--inputs FILE.npz), or raise [export] tolerance in autotune.toml"
        return [f"warning: {what}. An export would be refused as it is: {advice}"]
    return [f"{what}; {next(text for by, text in _DECIDES.items() if by in spec.verified_by)}"]
