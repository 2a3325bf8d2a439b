"""The keywords of `submit` and `tune`: all options of a submission, with their types, and some of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from autotune.options import TuningOptions, declared

Keywords = ParamSpec("Keywords")
Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class SubmitKeywords(TuningOptions):
    """The keywords of `submit`."""

    workspace: str | Path = "."
    progress: Callable[[str], None] = lambda step: None


@dataclass(frozen=True, kw_only=True)
class TuneKeywords(SubmitKeywords):
    """The keywords of `tune`."""

    timeout_s: float | None = None


def takes(
    keywords: Callable[Keywords, Given],
) -> Callable[[Callable[[Any, Given], Result]], Callable[Concatenate[Any, Keywords], Result]]:
    """Make of a function of a model and an object one that takes the fields of the object as keywords.

    Type checkers and `help` see the keywords. `OPTIONS` in its docstring becomes a line for each option.
    """

    def decorate(function: Callable[[Any, Given], Result]) -> Callable[Concatenate[Any, Keywords], Result]:
        def call(model: Any, *none: Keywords.args, **given: Keywords.kwargs) -> Result:
            kept: Any = {name: value for name, value in given.items() if value is not None}  # None is left out
            return function(model, keywords(*none, **kept))

        update_wrapper(call, function)
        vars(call)["__signature__"] = _signature(function, keywords)
        options = "\n    ".join(f"{name}: {option.python or option.help}" for name, option in declared())
        call.__doc__ = (inspect.getdoc(function) or "").replace("OPTIONS", options)
        return cast("Callable[Concatenate[Any, Keywords], Result]", call)

    return decorate


def _signature(function: Callable[..., Any], keywords: Callable[..., Any]) -> inspect.Signature:
    model = next(iter(inspect.signature(function).parameters.values()))
    own = inspect.signature(keywords).parameters
    defaults = keywords()
    names = dict.fromkeys([*(name for name, _ in declared()), *own])
    return inspect.Signature([model, *(own[name].replace(default=getattr(defaults, name)) for name in names)])
