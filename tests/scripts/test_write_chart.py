"""The chart at the top of the README shows what the measured table says."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("write_chart", ROOT / "scripts" / "docs" / "write_chart.py")
assert _spec is not None and _spec.loader is not None
write_chart = sys.modules["write_chart"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write_chart)

SVG = "{http://www.w3.org/2000/svg}"


def measured(page: str) -> str:
    """The measured table of a page."""
    return str(re.findall(r"<!-- TABLE: bench_inference -->\n(.*?)<!-- END TABLE -->", page, re.S)[0])


def test_the_chart_is_that_of_the_table() -> None:
    drawn = write_chart.draw(write_chart.rows(write_chart.PAGE.read_text()))
    assert write_chart.PICTURE.read_text() == drawn, "run python scripts/docs/write_chart.py"


def test_the_readme_has_the_same_table() -> None:
    assert measured((ROOT / "README.md").read_text()) == measured(write_chart.PAGE.read_text())


def test_every_bar_is_as_long_as_its_share() -> None:
    page = write_chart.PAGE.read_text()
    shares = [float(share) for share in re.findall(r"\| ([\d.]+) \([\d.]+ to", measured(page))]
    assert len(shares) >= 6
    bars = [item for item in ElementTree.fromstring(write_chart.PICTURE.read_text()).iter(f"{SVG}rect")][1:]
    lengths = [float(bar.attrib["width"]) for bar in bars]
    longest = max(range(len(shares)), key=shares.__getitem__)
    for share, length in zip(shares, lengths, strict=True):
        assert abs(length / lengths[longest] - share / shares[longest]) < 0.005
    assert [bar.attrib["class"] for bar in bars] == ["faster" if share < 1 else "slower" for share in shares]
