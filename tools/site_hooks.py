"""Makes a site of the documentation (`make docs`): gives MkDocs the pages that stand outside of `docs/`, and
lets every link lead to where its file is in the site. In the tree, links stay those that a reader of the
files follows.

The README is the first page; `docs/README.md` is the list of pages; a list of the measurements is made; any
other file that a page links to, such as an example, is copied. A link whose text is the name of a page gets
its title."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = "docs/"
RENAMED: Final = {"README.md": "index.md", "docs/README.md": "pages.md"}
"""Path from the root of the tree → path in the site."""
FOUND_AS: Final = {site: tree for tree, site in RENAMED.items()}
OUTSIDE: Final = ("README.md", "docs/README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Pages that MkDocs does not find by itself under their names in the site."""
RESULTS: Final = "docs/results"
LINK: Final = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s#]+)(?P<fragment>[^)\s]*)\)")
PAGE_NAME: Final = re.compile(r"[\w./-]+\.md")
FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def site_path(tree_path: str) -> str:
    """Where a file of the tree is in the site, both as paths from the root; a folder is its list of pages."""
    if (ROOT / tree_path).is_dir():
        tree_path = join(tree_path, "README.md")
    return RENAMED.get(tree_path) or tree_path.removeprefix(DOCS)


def tree_path(site: str) -> str:
    """Where a page of the site comes from."""
    if site in FOUND_AS:
        return FOUND_AS[site]
    return DOCS + site if (ROOT / DOCS / site).exists() else site


def linked(page: str, target: str) -> str | None:
    """The path from the root of the file that a page of the tree links to; None if it is elsewhere."""
    if "://" in target or target.startswith("mailto:"):
        return None
    return normpath(join(dirname(page), target))


def with_site_links(page: str, text: str) -> str:
    """A page's text with its links as the site needs them. `page`: its path from the root of the tree."""

    def change(match: re.Match[str]) -> str:
        found = linked(page, match["target"])
        if found is None:
            return match[0]
        target = relpath(site_path(found), dirname(site_path(page)) or ".")
        text = title(found) if PAGE_NAME.fullmatch(match["text"]) else match["text"]
        return f"[{text}]({target}{match['fragment']})"

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(change, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(change, text[last:])])


def title(page: str) -> str:
    """The title of a page of the tree: its first heading."""
    heading = re.search(r"^# (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1] if heading else page


def list_of_results() -> str:
    """A page that links to every measurement, the newest first."""
    pages = sorted((ROOT / RESULTS).glob("*.md"), key=lambda path: path.stem[-10:], reverse=True)
    lines = [f"- [{title(f'{RESULTS}/{path.name}')}]({path.name})" for path in pages]
    return "\n".join(["# Results of measurements", "", *lines, ""])


def links_outside(page: str, text: str) -> Iterator[str]:
    """The files outside of `docs/` that a page links to, by their paths from the root."""
    for match in LINK.finditer(FENCE.sub("", text)):
        found = linked(page, match["target"])
        if found is not None and not found.startswith(DOCS) and (ROOT / found).is_file():
            yield found


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages and the linked files that stand outside of `docs/`."""
    pages = [DOCS + file.src_uri for file in files.documentation_pages()]
    wanted = [path for path in OUTSIDE if (ROOT / path).exists()]
    seen = set(wanted)
    for page in [*pages, *wanted]:
        for path in links_outside(page, (ROOT / page).read_text(encoding="utf-8")):
            if path not in seen:
                seen.add(path)
                wanted.append(path)  # its own links are looked at in their turn
    for path in wanted:
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, site_path(RESULTS), content=list_of_results()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes the links of one page."""
    if page.file.src_uri == site_path(RESULTS):
        return markdown
    return with_site_links(tree_path(page.file.src_uri), markdown)
