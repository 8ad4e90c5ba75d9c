"""The documentation builds into a site without a warning; all pages are in it, and none loads anything from
elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.docs.pages import RESULTS, ROOT, anchor
from tools.site_hooks import site_path, title, with_site_links


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site as `make docs` makes it."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.mark.long
def test_every_page_is_in_the_site(site: Path) -> None:
    for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        page = site / site_path(str(path.relative_to(ROOT))).replace("README.md", "index.md")
        text = page.with_suffix(".html").read_text(encoding="utf-8")
        assert f'<h1 id="{anchor(title(str(path.relative_to(ROOT))))}"' in text, path


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\"\s>]+)|<link[^>]*\shref=\"?([^\"\s>]+)")
    for page in site.rglob("*.html"):
        for script, sheet in loaded.findall(page.read_text(encoding="utf-8")):
            assert not re.match(r"(https?:)?//", script or sheet), f"{page}: {script or sheet}"


def test_every_link_of_a_page_leads_to_a_file_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue  # its links are for a server's root
        for target in re.findall(r"<a[^>]*\shref=\"?([^\"\s>#]+)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("README.md", "[docs/faq.md](docs/faq.md)", f"[{title('docs/faq.md')}](faq.md)"),
        (
            "docs/faq.md",
            "[the lease](develop/controller.md#leases)",
            "[the lease](develop/controller.md#leases)",
        ),
        ("docs/develop/store.md", "[it](../../CONTRIBUTING.md)", "[it](../CONTRIBUTING.md)"),
        ("docs/develop/store.md", "[all](../results/)", "[all](../results/README.md)"),
        ("docs/faq.md", "[orders](../examples/orders.yaml)", "[orders](examples/orders.yaml)"),
        ("docs/faq.md", "[there](https://example.org/README.md)", "[there](https://example.org/README.md)"),
        ("docs/faq.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_lead_to_where_files_are_in_the_site(page: str, text: str, expected: str) -> None:
    assert with_site_links(page, text) == expected


def test_each_measurement_is_listed(site: Path) -> None:
    text = (site / "results" / "index.html").read_text(encoding="utf-8")
    for path in RESULTS.glob("*.md"):
        assert f"{path.stem}.html" in text
