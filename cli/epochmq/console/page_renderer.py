"""Makes responses from templates, and from errors."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from epochmq.console.page_views import link_to
from epochmq.exits import UsageError, error_text
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError

FILES: Final = Path(__file__).parent
ABSENT: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.BROKER_NOT_EXIST,
    }
)
ERRORS: Final = (UsageError, EpochMQError, OSError)
SECTIONS: Final = (
    ("/", "Overview"),
    ("/brokers", "Brokers"),
    ("/controllers", "Controllers"),
    ("/topics", "Topics"),
    ("/groups", "Consumer groups"),
    ("/clients", "Clients"),
    ("/dead-letters", "Dead letters"),
    ("/access", "Access"),
    ("/audits", "Audits"),
    ("/about", "About"),
)
"""The pages of the navigation: path and name."""


class PageRenderer:
    """Renders the templates. `form_token` is what forms that change something carry; empty if none may."""

    def __init__(self, form_token: str) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(FILES / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            link_to=link_to, version=version("epochmq"), sections=SECTIONS, form_token=form_token
        )

    def show(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A page from its template."""
        return HTMLResponse(self._templates.get_template(template).render(**values), status)

    def failure(self, error: Exception) -> HTMLResponse:
        """The page of an error."""
        return self.show("error.html", status_of(error), title="This cannot be shown", text=error_text(error))


def status_of(error: Exception, *, absent: int = 404, usage: int = 400) -> int:
    """The HTTP status of an error: a wrong question, something that does not exist, or a cluster that does
    not serve it now."""
    if isinstance(error, UsageError):
        return usage
    if isinstance(error, RequestError) and error.code in ABSENT:
        return absent
    return 503
