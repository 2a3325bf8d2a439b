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

from autotune import schema
from autotune.config import Config, Setting

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
INTRODUCTION = """\
# Settings

`autotune.toml` in the workspace holds the settings, in [TOML](https://toml.io). The file is optional, and so is
everything in it: what it leaves out has its default. An unknown section or key, a value of the wrong type and a value
out of bounds are errors that name the line. The daemon reads the settings when it starts, and every stage reads them
when it starts. If the file has become wrong by then, no stage runs, and `autotune status` says why.

```toml
[machine]
cpu_slots = 6            # leave the others alone
measure_cpus = 2         # of these six, kept for measurements on the CPU
[job]
trials = 2000
[daemon]
window = "22:00-07:00"   # when stages may run
```

This page is written by `python scripts/docs/write_settings_page.py` from the declarations in `autotune/settings.py`.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE}")


def page() -> str:
    """Return the page as Markdown."""
    return re.sub(r"docs/([a-z]+/[a-z-]+\.md)", r"[\1](../\1)", "\n".join([INTRODUCTION, *_sections()]))


def _sections() -> Iterator[str]:
    described = Config.describe()
    for name, defaults in Config.sections().items():
        yield f"## [{name}]\n"
        yield f"{inspect.getdoc(defaults)}\n"
        yield "| setting | default | value | meaning |\n|---|---|---|---|"
        yield from (_row(setting) for setting in described if setting.section == name)
        yield ""


def _row(setting: Setting) -> str:
    value = schema.describe(setting.type)
    return f"| `{setting.key}` | `{json.dumps(setting.default)}` | {value} | {setting.doc} |"


if __name__ == "__main__":
    main()
