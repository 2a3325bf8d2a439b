#!/usr/bin/env python
"""Write the screenshots of the documentation, from a workspace whose daemon is running.

    autotune daemon start && python scripts/docs/write_screenshots.py --job resnet18

`docs/images/status-watch.svg` is what `autotune status --watch` shows at this moment. `report-light.png` and
`report-dark.png` beside it are the top of the page of `autotune report JOB --html`, in Chromium.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console, Group
from rich.terminal_theme import MONOKAI

from autotune.commands.status import Screen
from autotune.storage.paths import Workspace

IMAGES = Path(__file__).parents[2] / "docs" / "images"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCHEMES = {"dark": 0, "light": 1}  # the values of Chromium's preferredColorScheme


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, default=Path())
    parser.add_argument("--job", help="write the report of this job, too")
    parser.add_argument("--columns", type=int, default=140, help="the width of the terminal")
    options = parser.parse_args()
    terminal(Workspace(options.workspace), options.columns, IMAGES / "status-watch.svg")
    if options.job:
        report(options.workspace, options.job)


def terminal(workspace: Workspace, columns: int, picture: Path) -> None:
    """Write what `status --watch` shows as an SVG file."""
    console = Console(record=True, width=columns, force_terminal=True, color_system="truecolor", file=io.StringIO())
    console.print(Group(*Screen(workspace, lambda: None, verbose=False, watch=True).look()))
    drawn = console.export_svg(title="autotune status --watch", theme=MONOKAI, unique_id="autotune")
    picture.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.S))  # they would be loaded from elsewhere
    print(f"wrote {picture}")


def report(workspace: Path, job: str) -> None:
    """Write the top of a job's report as PNG files."""
    if BROWSER is None:
        sys.exit("write_screenshots: install chromium for the report")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        words = [sys.executable, "-m", "autotune", "--workspace", str(workspace), "report", job, "--html", str(page)]
        subprocess.run(words, check=True)
        for name, scheme in SCHEMES.items():
            picture = IMAGES / f"report-{name}.png"
            words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            words += [f"--user-data-dir={folder}/{name}", f"--blink-settings=preferredColorScheme={scheme}"]
            words += ["--window-size=1100,800", f"--screenshot={picture}", page.as_uri()]
            subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
            print(f"wrote {picture}")


if __name__ == "__main__":
    main()
