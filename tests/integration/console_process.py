"""A process of `epochmq console`, for the tests of its pages."""

from __future__ import annotations

import html
import re
import signal
import subprocess

import httpx

from tests.integration.up_run import COMMAND
from tests.support.process import PATIENCE_S

FACT = re.compile(r"<dt>(.*?)</dt><dd>(.*?)</dd>")


class Console:
    """A console process, and the pages that it serves."""

    def __init__(self, *options: str) -> None:
        command = [*COMMAND, "console", "--listen", "127.0.0.1:0", "--timeout", "60", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+/", line)
        assert found is not None, line or self.process.communicate()[1]
        self.url = found[0]
        self.client = httpx.Client(base_url=self.url, timeout=2 * PATIENCE_S)

    def page(self, path: str, expected: int = 200, **query: str) -> str:
        """A page without its entities."""
        response = self.client.get(path, params=query or None)  # an empty one would drop the path's own
        assert response.status_code == expected, response.text
        return html.unescape(response.text)

    def facts(self) -> dict[str, str]:
        """What the card of the only group says."""
        return dict(FACT.findall(self.client.get("/overview-fragment").text))

    def stop(self) -> None:
        """Ends the process, which must not have failed."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=2 * PATIENCE_S)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors, errors
