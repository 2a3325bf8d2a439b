"""Strategies by name, the user's own among them."""

from __future__ import annotations

import pytest

from autotune import strategies
from autotune.strategies.strategy import Strategy


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
    ("class Search: pass", "broken_one.Search is not a class below autotune.strategies.strategy.Strategy"),
])  # fmt: skip
def test_a_strategy_that_cannot_be_loaded_says_how(tmp_path, monkeypatch, text, fault):
    (tmp_path / "broken_one.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(strategies.STRATEGIES, "broken", "broken_one")
    monkeypatch.delitem(__import__("sys").modules, "broken_one", raising=False)
    with pytest.raises(ValueError, match=fault):
        strategies.get("broken")


CLIMBER = "from autotune.strategies.strategy import Strategy\nclass {}(Strategy):\n    def explore(self, count): ..."


@pytest.mark.parametrize(("named", "class_name"), [("own_one:Climber", "Climber"), ("own_one", "Search")])
def test_an_entry_point_names_a_class_or_a_module_with_a_class_search(tmp_path, monkeypatch, named, class_name):
    (tmp_path / "own_one.py").write_text("\n".join(CLIMBER.format(name) for name in ("Climber", "Search")))
    told = tmp_path / "own_one-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: own-one\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[autotune.strategies]\nown = {named}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_one", raising=False)
    assert "own" in strategies.names()
    assert strategies.get("own").__name__ == class_name


def test_the_search_of_the_back_end_is_named_but_not_loaded_here():
    assert "evolutionary" in strategies.names()
    with pytest.raises(ValueError, match="'evolutionary' belongs to the TVM back end"):
        strategies.get("evolutionary")
