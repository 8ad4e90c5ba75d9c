"""Opens pages in the Chromium of this machine, and collects errors and requests to other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.support.process import PATIENCE_S

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = PATIENCE_S * 1000
expect.set_options(timeout=PATIENCE_MS)  # playwright waits 5 s otherwise, too short for a busy machine


def missing() -> str | None:
    """What this machine lacks to open pages; None if it lacks nothing."""
    if any(map(shutil.which, PROGRAMS)):
        return None
    return "chromium (apt-get install chromium), to open the console's pages"


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A browser of a test. It skips the test where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"missing: {missing()}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--disable-gpu", "--disable-dev-shm-usage"], timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


class WatchedPage:
    """A page of the browser. `faults` are errors of the page and requests to other hosts than the console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self._host = urlsplit(url).netloc
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._written)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", self._asked)

    def _written(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text} at {message.location.get('url')}")

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self._host:
            self.faults.append(f"request to another host: {request.url}")

    def open(self, path: str) -> None:
        """Opens a page of the console, which must be served."""
        response = self.page.goto(self.url.rstrip("/") + path)
        assert response is not None
        assert response.status == 200, response.text()

    def overflow_px(self) -> int:
        """By how many pixels the page is wider than its window."""
        found = self.page.evaluate(
            "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
        )
        return int(found)


@contextmanager
def watched_page(
    browser: Browser, url: str, *, width_px: int = 1600, is_dark: bool = False, token: str = ""
) -> Iterator[WatchedPage]:
    """A page in a window of its own, which must have no faults at its end. `token` is for a console that asks
    for one."""
    context = browser.new_context(
        viewport={"width": width_px, "height": 900},
        color_scheme="dark" if is_dark else "light",
        http_credentials={"username": "admin", "password": token} if token else None,
    )
    try:
        watched = WatchedPage(context.new_page(), url)
        yield watched
        assert watched.faults == []
    finally:
        context.close()
