"""docs/reference/settings.md says what the settings are."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from autotune.config import Config


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("write_settings_page")


def test_the_page_is_what_the_declarations_say(script: ModuleType) -> None:
    assert script.PAGE.read_text() == script.page(), "run `python scripts/docs/write_settings_page.py`"


def test_it_has_every_setting_in_its_section(script: ModuleType) -> None:
    sections = {text.split("]")[0]: text for text in script.page().split("## [")[1:]}
    for setting in Config.describe():
        assert f"\n| `{setting.key}` | " in sections[setting.section]


def test_it_says_what_may_be_set(script: ModuleType) -> None:
    page = script.page()
    assert "| `memory_share` | `0.8` | a number, from 0.01 to 1 | " in page
    assert '| `trials` | `"auto"` | a whole number, at least 1, or auto | ' in page
    assert "| `sampler` | `\"\"` | one of '', greedy, adaptive | " in page
