"""Serves the pages: paths, forms, errors, and the headers that keep a browser from anything else."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from epochmq.console.access_guard import rejection
from epochmq.console.change_pages import ChangePages, FormRejectedError
from epochmq.console.cluster_facts import ClusterFacts
from epochmq.console.cluster_pages import ClusterPages
from epochmq.console.page_renderer import ERRORS, FILES, PageRenderer
from epochmq.console.rate_samples import SampleRing
from epochmq.console.topic_pages import TopicPages

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_console(
    facts: ClusterFacts,
    accepts: Callable[[str], bool] | None,
    *,
    allows_changes: bool = False,
    ring: SampleRing | None = None,
) -> FastAPI:
    """The application. `accepts` decides about tokens; None: no token is needed, and only requests that name
    this machine are served, so that no page of another site reads a cluster through a browser on it.
    `allows_changes` needs tokens. `ring` has the samples that pages show over time."""
    assert accepts is not None or not allows_changes, "changes need a token"
    form_token = secrets.token_urlsafe(32) if allows_changes else ""
    renderer = PageRenderer(form_token)
    samples = SampleRing() if ring is None else ring
    pages = TopicPages(facts, renderer, samples, has_bundle=accepts is not None)
    more = ClusterPages(facts, renderer, samples)
    app = FastAPI(title="EpochMQ", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = rejection(request, accepts) or await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    handlers: dict[str, Callable[..., Awaitable[Response]]] = {
        "/": pages.overview,
        "/overview-fragment": pages.overview_fragment,
        "/topics": pages.topics,
        "/topic": pages.topic,
        "/message": pages.message,
        "/groups": pages.groups,
        "/group": pages.group,
        "/brokers": more.brokers,
        "/broker": more.broker,
        "/controllers": more.controllers,
        "/clients": more.clients,
        "/dead-letters": more.dead_letters,
        "/dead-letter-group": more.dead_letter_group,
        "/access": more.access,
        "/audits": more.audits,
        "/audit-report": more.audit_report,
        "/about": pages.about,
    }
    for path, handler in handlers.items():
        app.add_api_route(path, handler, methods=["GET"], response_class=HTMLResponse)
    if allows_changes:
        changes = ChangePages(facts, renderer, form_token)
        forms: dict[str, Callable[..., Awaitable[Response]]] = {
            "/group/reset": changes.reset,
            "/dead-letter-group/resend": changes.resend,
            "/topics/create": changes.create_topic,
            "/broker/promote": changes.promote,
            "/access/password": changes.set_password,
        }
        for path, handler in forms.items():
            app.add_api_route(path, handler, methods=["POST"], response_class=HTMLResponse)
    if accepts is not None:  # logs are for those with a token, not for every user of this machine
        app.add_api_route("/support-bundle", more.support_bundle, methods=["GET"])
    _add_error_pages(app, renderer)
    app.mount("/static", StaticFiles(directory=FILES / "static"))
    return app


def _add_error_pages(app: FastAPI, renderer: PageRenderer) -> None:
    async def failed(request: Request, error: Exception) -> Response:
        return renderer.failure(error)

    for kind in ERRORS:
        app.add_exception_handler(kind, failed)

    @app.exception_handler(FormRejectedError)
    async def not_ours(request: Request, error: FormRejectedError) -> Response:
        return renderer.show("error.html", 403, title="Nothing was changed", text=str(error))

    @app.exception_handler(HTTPException)
    async def rejected(request: Request, error: HTTPException) -> Response:
        return renderer.show(
            "error.html", error.status_code, title=str(error.detail), text="The console has no such page."
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        names = ", ".join(str(one["loc"][-1]) for one in error.errors())
        text = f"The address of this page lacks a value, or has a wrong one: {names}."
        return renderer.show("error.html", 400, title="This cannot be shown", text=text)
