"""Every link, path and test that the documentation names exists."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.pages import ROOT, Page, pages, read, tracked, user_pages

PAGES = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
PLACEHOLDERS = ("*", "…", "<", " ", "DATE")


@PAGES
def test_every_link_leads_to_a_file_and_a_heading(page: Page) -> None:
    for file, fragment in page.links:
        target = page.path.parent / file if file else page.path
        assert target.exists(), file
        if fragment:
            assert fragment in read(target).anchors, f"{file}#{fragment}"


@PAGES
def test_every_path_names_a_file_of_the_project(page: Page) -> None:
    """A path may begin below the package that a page is about, such as `epochmq_store/flush.py`."""
    known = ["", *tracked(), *folders()]
    roots = {file.partition("/")[0] for file in tracked() if "/" in file}
    for word in page.words:
        path, _, test = word.partition("::")
        path = path.rstrip("/")
        if any(mark in path for mark in PLACEHOLDERS):
            continue
        if not path.endswith(".py") and ("/" not in path or path.partition("/")[0] not in roots):
            continue
        found = [one for one in known if one == path or one.endswith(f"/{path}")]
        assert found, word
        if test:
            name = test.rpartition("::")[2]
            texts = [(ROOT / one).read_text(encoding="utf-8") for one in found]
            assert any(re.search(rf"^\s*(async )?def {name}\(", text, re.MULTILINE) for text in texts), word


def folders() -> set[str]:
    """The project's folders."""
    return {
        "/".join(file.split("/")[:depth]) for file in tracked() for depth in range(1, file.count("/") + 1)
    }


@pytest.mark.parametrize("page", user_pages(), ids=lambda page: page.name)
def test_a_page_for_users_says_whom_it_is_for_and_names_no_test(page: Page) -> None:
    if page.path.name in ("resources.md", "README.md"):
        return  # made from the model; the list of pages
    first = page.text.split("\n\n")[1]
    assert first.startswith("For "), first
    assert "After this page" in first or page.path.name == "glossary.md", first
    if page.path.name != "architecture.md":
        assert [word for word in page.words if word.startswith("tests/")] == []


def test_every_page_is_in_a_list_of_pages() -> None:
    for folder in (ROOT / "docs", ROOT / "docs" / "develop"):
        listed = {file for file, _ in read(folder / "README.md").links}
        there = {path.name for path in folder.glob("*.md")} - {"README.md"}
        assert there - listed == set()


@PAGES
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page: Page) -> None:
    width = 0
    for line in [*page.prose.splitlines(), ""]:
        cells = len(re.split(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or not width or cells == width, line
        width = cells
