"""docs/reference/settings.md says what the settings are."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("write_settings_page")


def test_the_page_is_what_the_declarations_say(script: ModuleType) -> None:
    assert script.PAGE.read_text() == script.page(), "run `python scripts/docs/write_settings_page.py`"


def test_the_page_has_every_setting_in_its_section(script: ModuleType) -> None:
    sections = {text.split("]")[0]: text for text in script.page().split("## [")[1:]}
    settings = script.settings()
    assert len(settings) > 20
    for setting in settings:
        assert f"\n- `{setting.key} = {json.dumps(setting.default)}`: " in sections[setting.section]


def test_the_page_says_what_a_setting_may_be(script: ModuleType) -> None:
    page = script.page()
    items = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("- `")}
    assert items['trials = "auto"'].endswith(" A whole number, at least 1, or auto.")
    assert items['sampler = ""'].endswith(" One of '', greedy, adaptive.")
    assert items['tracker = "127.0.0.1:9190"'].endswith(" HOST:PORT.")
    assert "at least" not in items["warmup = 1"] and "true or false" not in page
