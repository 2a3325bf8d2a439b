"""The generated pages of docs/reference say what the code says."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest

from autotune import errors
from autotune.cli import VERBS
from autotune.options import declared


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("write_reference_pages")


@pytest.mark.parametrize("page", ["commands", "exit-codes", "files", "policies", "python", "strategies"])
def test_a_page_is_what_the_code_says(script: ModuleType, page: str) -> None:
    written = (script.FOLDER / f"{page}.md").read_text()
    assert written == script.PAGES[page](), "run `python scripts/docs/write_reference_pages.py`"


def test_all_pages_are_compared(script: ModuleType) -> None:
    assert set(script.PAGES) == {"commands", "exit-codes", "files", "policies", "python", "strategies"}


def test_every_command_and_option_is_there(script: ModuleType) -> None:
    page = script.commands()
    assert all(f"\n## autotune {name}\n" in page for name in VERBS)
    assert "\n### autotune daemon install\n" in page and "`--window HH:MM-HH:MM`" in page
    assert "- `cron|systemd`: What starts the daemon." in page


def test_every_error_has_its_exit_code(script: ModuleType) -> None:
    codes = dict(re.findall(r"^\*\*Exit code (\d+)\*\*\n\n((?:- .*\n)+)", script.exit_codes(), re.M))
    for name in errors.__all__:
        kind = getattr(errors, name)
        inner = isinstance(kind, type) and issubclass(kind, errors.InvalidData)  # a reader of files catches these
        if isinstance(kind, type) and kind is not errors.AutotuneError and not inner:
            assert f"- `{name}`: " in codes[str(kind.exit_code)]


def test_options_of_two_commands_are_said_once(script: ModuleType) -> None:
    page = script.commands()
    assert page.count("- `--until HH:MM`: ") == 1
    assert "\n### autotune daemon start\n" in page and "\nThe options of `autotune daemon run`.\n" in page


def test_the_python_page_names_the_options_of_submit_that_take_other_values(script: ModuleType) -> None:
    page = script.python()
    (line,) = [line for line in page.splitlines() if line.startswith("- the options of [`autotune submit`]")]
    assert [name for name, option in declared() if option.python and f"`{name}`" not in line] == []
    assert page.count("- `trials`: ") == 1, "of Progress"
    assert "tune(model, *, timeout_s=None, ...)" in page and "- the keywords of [`submit`](#submit)\n" in page
