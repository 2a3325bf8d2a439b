"""Every link leads somewhere, and every page is in the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import PAGES, ROOT, name

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_SOURCE = re.compile(r"(?<!:)\b(?!lib/)(?:\w+/)+[a-z_0-9/-]+\.(?:py|sh)\b")  # not in lib/, nor COMMIT:path


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    names = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.M):
        names.add(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-"))
    return names


def broken(page: Path) -> list[str]:
    """The links of a page to files or headings that are not there."""
    missing = []
    for link in _LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.S)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            missing.append(link)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](other.md) [d](page.md#one) `[e](code.md)`\n")
    assert broken(page) == ["#two", "other.md"]


def absent(text: str) -> list[str]:
    """The source files that a text names and that are not there. A name may leave out the first folders."""
    there = [
        str(path.relative_to(ROOT)) for room in ("autotune", "scripts", "tests") for path in (ROOT / room).rglob("*.*")
    ]
    return [named for named in _SOURCE.findall(text) if not any(f"/{path}".endswith(f"/{named}") for path in there)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_source_files_that_a_page_names_are_there(page: Path) -> None:
    assert absent(page.read_text()) == []


def test_a_source_file_that_is_not_there_is_found() -> None:
    assert absent("`kernels/verify.py` tests/docs/test_links.py scripts/no_such.sh") == ["scripts/no_such.sh"]


def test_the_site_has_every_page() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_the_index_leads_to_every_page() -> None:
    text = (ROOT / "docs" / "README.md").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f"({page}" not in text and page != "README.md"] == []


def test_every_picture_is_used_and_small() -> None:
    text = "".join(page.read_text() for page in PAGES)
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.name in text
        assert picture.stat().st_size < 200_000, picture.name
