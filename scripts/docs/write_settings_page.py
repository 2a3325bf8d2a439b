#!/usr/bin/env python
"""Write docs/reference/settings.md from the declarations of the settings.

python scripts/docs/write_settings_page.py
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from autotune import schema
from autotune.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
INTRODUCTION = """\
# Settings

`autotune.toml` in the workspace holds the settings, in [TOML](https://toml.io). What it leaves out has the default that
is shown here. A mistake is an error that names the line. The daemon and every stage read the file when they start. If
it has become wrong by then, no stage runs, and `autotune status` says why.

```toml
[machine]
cpu_slots = 6            # leave the others alone
measure_cpus = 2         # of these six, kept for measurements on the CPU
[job]
trials = 2000
[daemon]
window = "22:00-07:00"   # when stages may run
```

A value is of the type of its default. The error for a number out of bounds says what they are. Written from
`autotune/settings.py`.
"""


class Setting(NamedTuple):
    """One setting. `type` is that of its field, with the bounds."""

    section: str
    key: str
    default: int | float | str
    doc: str
    type: Any


def settings() -> list[Setting]:
    """Return every setting there is, in the order of the sections."""
    return [
        Setting(name, key, getattr(defaults, key), (meta and meta.description) or "", hint)
        for name, defaults in Config.sections().items()
        for key, hint in schema.field_types(defaults.__class__).items()
        for meta in [schema.meta_of(hint)]
    ]


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE}")


def page() -> str:
    """Return the page as Markdown."""
    return re.sub(r"docs/([a-z]+/[a-z-]+\.md)", r"[\1](../\1)", "\n".join([INTRODUCTION, *_sections()]))


def _sections() -> Iterator[str]:
    described = settings()
    for name, defaults in Config.sections().items():
        yield f"## [{name}]\n"
        yield f"{inspect.getdoc(defaults)}\n"
        yield from (_item(setting) for setting in described if setting.section == name)
        yield ""


def _item(setting: Setting) -> str:
    return f"- `{setting.key} = {json.dumps(setting.default)}`: {setting.doc}{_bounds(setting)}"


def _bounds(setting: Setting) -> str:
    """Return what a text may be, as a sentence, where it is not any."""
    value = schema.describe(setting.type)
    if isinstance(setting.default, int | float) or value == "text":
        return ""
    return f" {value[0].upper()}{value[1:]}."


if __name__ == "__main__":
    main()
