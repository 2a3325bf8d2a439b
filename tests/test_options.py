"""Every option of a submission is at every place that has them: they follow from one declaration."""

from __future__ import annotations

import inspect
import time
from dataclasses import fields, replace
from typing import Any

import pytest
import typer

import autotune
from autotune import cli
from autotune.commands.report.facts import Settings
from autotune.commands.submit.words import options_of, read_options, write_options
from autotune.options import AUTO, InputSpec, JobOptions, TuningOptions, declared
from autotune.storage.formats import JobSpec

NAMES = [name for name, _ in declared()]
# Each option with a value that is not its default.
GIVEN: dict[str, Any] = {
    "target": "cuda",
    "name": "net",
    "trials": AUTO,
    "inputs": {"x": (InputSpec("x", (1, 8), "float32"), InputSpec("x", (2, 8), "float32"))},
    "dims": {"n": (7, 9)},
    "values": {"rate": 16000.0, "mean": [0.5]},
    "trials_per_round": 4,
    "priority": -2,
    "seed": 3,
    "fresh": True,
    "deadline": time.mktime((2026, 3, 1, 7, 0, 0, 0, 0, -1)),
    "within_s": 90.0,
    "stop_at_ms": 5.0,
    "on_end": "mail me",
    "strategy": "random",
    "sampler": "adaptive",
    "winograd": False,
    "precision": "fp16",
    "calibrate": "samples.npz",
    "max_drop": 0.01,
    "accuracy": "python score.py",
    "plan": "plan.toml",
    "memory_mb": 64.0,
    "context_tokens": 512,
    "activations": "int8",
}


def spec(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {name: GIVEN[name] for name in (field.name for field in fields(JobOptions))}
    own = {"id": 1, "name": "net", "model": "net.onnx", "target": {"kind": "cuda"}, "target_key": "key", "tasks": ()}
    inputs = (InputSpec("x", (1, 8), "float32"),)
    own |= {"inputs": inputs, "trials": 64, "known_at_submit": (), "submitted_at": 1.0}
    return JobSpec(**{**values, **own, **changes})


def parameters() -> dict[str, Any]:
    """The parameters of `autotune submit` by name."""
    command: Any = typer.main.get_command(cli.app)
    return {parameter.name: parameter for parameter in command.get_command(None, "submit").params}


def test_the_tests_of_options_have_a_value_for_each_that_is_not_its_default() -> None:
    assert GIVEN.keys() == set(NAMES) == {field.name for field in fields(TuningOptions)}
    assert all(GIVEN[name] != getattr(TuningOptions(), name) for name in NAMES)


def test_each_is_an_option_of_the_command_line_with_its_help() -> None:
    shown = parameters()
    for name, option in declared():
        assert option.help.endswith(".") and len(option.help) > 10
        assert shown[name].help == option.help


@pytest.mark.parametrize("function", [autotune.submit, autotune.tune])
def test_each_is_a_keyword_of_the_python_interface_with_the_same_default(function: Any) -> None:
    keywords = inspect.signature(function).parameters
    for name in NAMES:
        assert keywords[name].default == getattr(TuningOptions(), name)
        assert f"    {name}: " in function.__doc__


@pytest.mark.parametrize("kind", [JobSpec, Settings])
def test_each_that_a_job_keeps_is_in_its_spec_and_in_the_settings_of_its_report(kind: Any) -> None:
    assert {field.name for field in fields(JobOptions)} <= {field.name for field in fields(kind)}


def test_what_is_written_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: GIVEN["deadline"] - 3600)
    command = typer.main.get_command(cli.app)
    submit: Any = command.get_command(None, "submit")  # type: ignore[attr-defined]
    words = write_options(TuningOptions(**GIVEN))
    context = submit.make_context("submit", ["net.onnx", *words])
    given = {name: context.params[name] for name in NAMES if name != "target"}
    assert list(context.params["target"]) == ["cuda"]
    assert replace(read_options(given), target="cuda") == TuningOptions(**GIVEN)


def test_a_command_line_without_options_has_the_defaults() -> None:
    command = typer.main.get_command(cli.app)
    submit: Any = command.get_command(None, "submit")  # type: ignore[attr-defined]
    context = submit.make_context("submit", ["net.onnx"])
    assert read_options({name: context.params[name] for name in NAMES if name != "target"}) == TuningOptions()


def test_a_job_is_submitted_again_with_what_it_was_submitted_with() -> None:
    options = options_of(spec())
    assert options.kept() == {name: GIVEN[name] for name in options.kept()} != {}
    assert (options.trials, options.inputs) == (64, {"x": (InputSpec("x", (1, 8), "float32"),)})
    assert options_of(spec(automatic=True)).trials == AUTO
