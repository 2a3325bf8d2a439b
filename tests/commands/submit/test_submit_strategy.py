"""Which strategy and sampler a job gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune import strategies
from autotune.cli import _run
from autotune.commands.submit.publish import Submission, strategy_and_sampler
from autotune.config import Config, load_config
from autotune.errors import BadInput
from autotune.options import TuningOptions


def chosen(strategy=None, sampler=None, search=None):
    config = Config()
    return strategy_and_sampler(
        Submission(Path("net.onnx"), TuningOptions(strategy=strategy, sampler=sampler)),
        replace(config, search=replace(config.search, **(search or {}))),
    )


def test_the_command_line_goes_before_the_settings_and_these_before_the_strategys_own():
    assert chosen(strategy="chameleon") == ("chameleon", "adaptive")
    assert chosen(strategy="annealing") == ("annealing", "greedy")
    assert chosen("genetic", "adaptive", {"strategy": "random", "sampler": "greedy"}) == ("genetic", "adaptive")
    assert chosen(strategy="chameleon", sampler="greedy") == ("chameleon", "greedy")
    assert chosen() == (strategies.DEFAULT, "greedy")


@pytest.mark.parametrize(("words", "fault"), [
    (["--strategy", "anealing"], "[search] strategy: no strategy 'anealing'; there are evolutionary, beam, random"),
    (["--sampler", "best"], "--sampler 'best': there are greedy, adaptive"),
])  # fmt: skip
def test_what_there_is_not_is_one_line_before_the_model_is_read(tmp_path, capsys, words, fault):
    assert _run(["--workspace", str(tmp_path), "submit", "no.onnx", *words]) == 2
    said = capsys.readouterr().err
    assert fault in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_nonsense_in_the_settings_is_told_where_it_stands(tmp_path):
    path = tmp_path / "autotune.toml"
    path.write_text('[search]\nsampler = "best"\n')
    with pytest.raises(BadInput, match="autotune.toml:2: 'sampler' in .search. must be one of"):
        load_config(path)
