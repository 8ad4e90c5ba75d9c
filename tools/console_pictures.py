"""Takes a picture of every page of a console, in both schemes and three widths, to look at:
`python -m tools.console_pictures URL FOLDER [TOKEN]`. The pages are those that its own links lead to."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

WIDTHS_PX = (400, 900, 1600)
HEIGHT_PX = 900
PAGES_MAX = 40
"""How many pages are looked at: the links of large clusters have no end."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OF_ONE_KIND = re.compile(r"[=].*")


def pages_of(page: Page, url: str) -> list[str]:
    """The paths that the console's links lead to: one page of each kind."""
    found: dict[str, str] = {}
    waiting = ["/"]
    while waiting and len(found) < PAGES_MAX:
        path = waiting.pop(0)
        kind = OF_ONE_KIND.sub("", path)
        if kind in found:
            continue
        response = page.goto(url.rstrip("/") + path)
        if response is None or "html" not in response.headers.get("content-type", ""):
            continue
        found[kind] = path
        links = page.eval_on_selector_all("main a[href], nav a[href]", "all => all.map((one) => one.href)")
        for link in map(urlsplit, links):
            if link.netloc == urlsplit(url).netloc and link.path != "/support-bundle":
                waiting.append(f"{link.path}?{link.query}" if link.query else link.path)
    return list(found.values())


def pictures(browser: Browser, url: str, token: str, folder: Path) -> Iterator[Path]:
    """Takes the pictures; the path of each."""
    credentials = {"username": "admin", "password": token} if token else None
    paths: list[str] = []
    for scheme in ("light", "dark"):
        for width_px in WIDTHS_PX:
            context = browser.new_context(
                viewport={"width": width_px, "height": HEIGHT_PX},
                color_scheme="dark" if scheme == "dark" else "light",
                http_credentials=credentials,  # type: ignore[arg-type] # a plain dictionary has its fields
            )
            page = context.new_page()
            paths = paths or pages_of(page, url)
            for path in paths:
                page.goto(url.rstrip("/") + path)
                name = re.sub(r"\W+", "-", path.partition("=")[0]).strip("-") or "overview"
                file = folder / f"{name}-{scheme}-{width_px}.png"
                page.screenshot(path=file, full_page=True)
                yield file
            context.close()


def main() -> int:
    if len(sys.argv) not in (3, 4):
        print("usage: python -m tools.console_pictures URL FOLDER [TOKEN]", file=sys.stderr)
        return 2
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        print("missing: chromium (apt-get install chromium)", file=sys.stderr)
        return 1
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--disable-gpu", "--disable-dev-shm-usage"]
        )
        try:
            for file in pictures(browser, sys.argv[1], (sys.argv[3:] or [""])[0], folder):
                print(file)
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
