"""scripts/models/draw_programs.py: the draw depends on the rule and the versions alone."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("draw_programs")


@pytest.fixture
def networks(script: ModuleType) -> list[Any]:
    """Thirty networks of ten modules, of which nobody makes one."""
    return [script.Network(f"net{index:02}", f"module{index % 10}", lambda: None) for index in range(30)]


def names(drawn: list[Any]) -> list[str]:
    return [network.name for network in drawn]


def test_the_order_in_which_a_library_lists_its_networks_changes_nothing(script, networks):
    first = script.draw(networks, 6, 1, lambda _: True)
    assert names(first) == names(script.draw(networks[::-1], 6, 1, lambda _: True))
    assert names(first) != names(script.draw(networks, 6, 2, lambda _: True))


def test_no_two_are_of_one_module_and_all_fit(script, networks):
    taken = script.draw(networks, 10, 1, lambda network: network.name >= "net10")
    assert len({network.module for network in taken}) == len(taken) == 10
    assert min(names(taken)) >= "net10"


def test_a_network_that_does_not_fit_takes_its_module_from_no_other(script, networks):
    (first, *_) = script.draw(networks, 10, 1, lambda _: True)
    again = script.draw(networks, 10, 1, lambda network: network.name != first.name)
    assert first.module in {network.module for network in again}


def test_another_version_is_named(script):
    assert script.other_versions({"numpy": "0.0.1"}) and not script.other_versions({})
