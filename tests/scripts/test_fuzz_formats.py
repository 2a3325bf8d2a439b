"""Importing broken models of TensorFlow Lite and PyTorch, and broken GGUF files; and what the fuzzer would notice."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

CHAOS = Path(__file__).parents[2] / "scripts" / "chaos"
_PACKAGES = {"lite": ("tflite", "ai_edge_litert"), "torch": ("torch",), "gguf": ("gguf",)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", _PACKAGES)
def test_mutants_become_modules_or_one_line_and_run_nothing(kind: str) -> None:
    if not all(map(importlib.util.find_spec, _PACKAGES[kind])):
        pytest.skip(f"{' and '.join(_PACKAGES[kind])} must be installed")
    words = [sys.executable, CHAOS / "fuzz_formats.py", kind, "--count", "60", "--seed", "7"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 mutants: imported" in done.stdout
    assert " imported 0," not in done.stdout and " refused 0," not in done.stdout


@pytest.fixture
def fuzzer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(CHAOS))
    return importlib.import_module("fuzz_formats")


def _unpickle() -> None:
    class Runs:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("true",)

    pickle.loads(pickle.dumps(Runs()))


def _evaluate() -> None:
    eval("len('autotune_fuzz_mark')")


def _take_memory() -> None:
    np.ones(300 << 20, np.uint8).sum()


def _say_too_much() -> None:
    from autotune.errors import ModelError

    raise ModelError("two\nlines")


def _crash() -> None:
    faulthandler.disable()  # pytest's, which would print the stack of a child that is meant to die
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (_unpickle, "ran"),
        (_evaluate, "ran"),
        (_take_memory, "large"),
        (lambda: np.ones(1 << 40, np.uint8), "memory"),
        (lambda: [].pop(), "traceback"),
        (_crash, "crashed"),
        (_say_too_much, "unclear"),
        (lambda: None, "imported"),
    ],
)
def test_what_a_mutant_must_not_do_is_noticed(
    fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: Callable[[], Any], verdict: str
) -> None:
    monkeypatch.setattr(fuzzer, "imported", lambda path, shapes: action())
    monkeypatch.setattr(fuzzer.Mutants, "write", lambda mutants, number: (tmp_path, None))
    tally = fuzzer.Tally()
    assert fuzzer.run(fuzzer.Mutants("lite", tmp_path, 1, ()), [7], tally) == 1
    assert dict(tally.counts) == {verdict: 1}
    assert bool(tally.bad) == (verdict in ("ran", "large", "traceback", "unclear"))


def test_a_batch_goes_on_after_a_mutant_that_ended_its_process(
    fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def imported(path: Path, number: int) -> None:
        if number == 3:
            _crash()

    monkeypatch.setattr(fuzzer, "imported", imported)
    monkeypatch.setattr(fuzzer.Mutants, "write", lambda mutants, number: (tmp_path, number))
    tally = fuzzer.Tally()
    numbers = range(6)
    while numbers:
        numbers = numbers[fuzzer.run(fuzzer.Mutants("lite", tmp_path, 1, ()), numbers, tally) :]
    assert dict(tally.counts) == {"imported": 5, "crashed": 1}
