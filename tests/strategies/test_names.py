"""Strategies by name, the user's own among them."""

from __future__ import annotations

import pytest

from autotune import strategies
from autotune.strategies.base import Strategy


def test_a_users_strategy_is_found_by_its_entry_point():
    assert "hill" in strategies.names()
    assert issubclass(strategies.get("hill"), Strategy)


def test_each_goes_with_its_own_sampler():
    assert strategies.default_sampler("chameleon") == "adaptive"
    assert strategies.default_sampler("annealing") == strategies.default_sampler("evolutionary") == "greedy"


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no strategy 'hil'; there are evolutionary, beam, random, .*, hill"):
        strategies.get("hil")


@pytest.mark.parametrize(("text", "fault"), [
    ("", "the strategy 'broken' does not load: .*Search"),
    ("import nothing_like_this", "the strategy 'broken' does not load: No module named 'nothing_like_this'"),
    ("class Search: pass", "broken_one.Search is not a class below autotune.strategies.base.Strategy"),
])  # fmt: skip
def test_one_that_is_broken_says_how(tmp_path, monkeypatch, text, fault):
    (tmp_path / "broken_one.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(strategies.STRATEGIES, "broken", "broken_one")
    monkeypatch.delitem(__import__("sys").modules, "broken_one", raising=False)
    with pytest.raises(ValueError, match=fault):
        strategies.get("broken")
