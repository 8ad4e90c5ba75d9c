"""Serves the pages of brokers, controllers, dead letters, users with their permissions, and audits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Response
from fastapi.responses import HTMLResponse

from epochmq.console import audit_results
from epochmq.console.cluster_facts import BROKER_COLUMNS, ClusterFacts, series_of
from epochmq.console.page_renderer import PageRenderer
from epochmq.console.page_views import ViewCell, ViewTable, link_to, messages_view, view_of, with_lines
from epochmq.console.rate_samples import LineDrawing, SampleRing, SeriesName
from epochmq.verbs import controllers
from epochmq.verbs.output import OutputTable
from epochmq.verbs.support_bundle import FOLDER

DEAD_LETTERS_SHOWN: Final = 100
LINES: Final = {"in": ("IN/S", "IN OVER TIME"), "out": ("OUT/S", "OUT OVER TIME")}
IN: Final = ("in", "Messages stored a second")
OUT: Final = ("out", "Messages read a second")
BEHIND: Final = ("behind", "Bytes behind the master")
"""The charts of brokers: the kind of the series, and the title."""
REPORT_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser may do with an audit's report: show it, and nothing else."""


class ClusterPages:
    """The handlers of these pages."""

    def __init__(self, facts: ClusterFacts, renderer: PageRenderer, ring: SampleRing) -> None:
        self._facts = facts
        self._ring = ring
        self._show = renderer.show

    async def brokers(self) -> Response:
        """The brokers with their rates and lags."""
        rows = await self._facts.brokers()
        view = view_of(OutputTable(BROKER_COLUMNS, rows, "Brokers"), links={"broker": "broker"})
        view = with_lines(view, self._ring, list(map(series_of, rows)), LINES)
        return self._show("brokers.html", table_view=view)

    async def broker(self, name: str, done: str = "") -> Response:
        """The brokers of a group in detail."""
        found = await self._facts.broker(name)
        charts = [(f"{name}:{row['id']}, {row['role']}", self._lines_of(row)) for row in found.rows]
        return self._show(
            "broker.html",
            name=name,
            table_view=view_of(OutputTable(BROKER_COLUMNS, found.rows, "Brokers")),
            charts=charts,
            tables=[view_of(one) for one in found.tables],
            replicas=await self._facts.replicas(name),
            done=done,
        )

    def _lines_of(self, row: Mapping[str, Any]) -> list[tuple[str, LineDrawing | None]]:
        """The charts of a broker: of a master its rates, of a slave its lag, and its reads if it has any."""
        kinds = (IN, OUT) if row["role"] == "master" else (BEHIND, OUT)
        lines = [(title, self._ring.drawing(SeriesName(kind, series_of(row)))) for kind, title in kinds]
        return [
            (title, line)
            for at, (title, line) in enumerate(lines)
            if at == 0 or row["role"] == "master" or (line is not None and line.highest > 0)
        ]

    async def controllers(self) -> Response:
        """The quorum of controllers, and the groups that it keeps."""
        members, groups = await self._facts.controllers()
        known = [
            column for column in controllers.GROUP_COLUMNS if any(row.get(column.field) for row in groups)
        ]
        refused = [
            f"{row['broker']}/{one['brokerId']} at {one['address']} is refused: {one['reason']}"
            for row in groups
            for one in row.get("refused") or ()
        ]
        return self._show(
            "controllers.html",
            members=view_of(OutputTable(controllers.CONTROLLER_COLUMNS, members, "Controllers")),
            groups=view_of(
                OutputTable(known, groups, "Replica groups"),
                links={"broker": "broker"},
                empty="They keep no group.",
            ),
            notes=refused,
        )

    async def clients(self, everything: bool = False) -> Response:
        """The producers and consumers that are connected."""
        (table,) = (await self._facts.clients(everything=everything)).tables
        view = view_of(
            table,
            title="Clients",
            empty="No client is connected. Clients are known from their first heartbeat on.",
        )
        return self._show("clients.html", table_view=view, everything=everything)

    async def support_bundle(self) -> Response:
        """The bundle for support."""
        content = await self._facts.support_bundle()
        headers = {"Content-Disposition": f'attachment; filename="{FOLDER}.tar.gz"'}
        return Response(content, media_type="application/gzip", headers=headers)

    async def dead_letters(self) -> Response:
        """The consumer groups that have dead letters."""
        (table,) = (await self._facts.dead_letters()).tables
        columns = [column for column in table.columns if not column.is_wide]
        view = view_of(
            OutputTable(columns, table.rows, "Dead letters"),
            links={"group": "dead-letter-group"},
            empty="No consumer group has dead letters.",
        )
        return self._show("dead_letters.html", table_view=view)

    async def dead_letter_group(self, name: str) -> Response:
        """The newest dead letters of a consumer group."""
        found = await self._facts.dead_letters_of(name, DEAD_LETTERS_SHOWN)
        view = messages_view(found, with_ids=True)
        view = ViewTable("Messages", view.headings, view.rows, "The group has no dead letters.")
        ids = [one.msg_id for one in found]
        return self._show("dead_letter_group.html", name=name, table_view=view, ids=ids)

    async def access(self, done: str = "") -> Response:
        """The users, and what they may do."""
        found = await self._facts.access()
        return self._show(
            "access.html",
            notes=found.problems,
            done=done,
            names=sorted({str(row["user"]) for row in found.users.rows}),
            users=view_of(found.users, empty="The brokers know no users."),
            entries=view_of(found.entries, empty="No user has permissions of its own."),
        )

    async def audits(self) -> Response:
        """The audits of the run."""
        results = self._facts.audits
        rows = await asyncio.to_thread(results.listed)
        view = view_of(
            OutputTable(audit_results.COLUMNS, rows, "Audits"),
            empty="There is no audit yet. `epochmq audit GROUP` makes one."
            if results.state is not None
            else "Audits are shown of runs on this machine only.",
        )
        return self._show("audits.html", table_view=_with_reports(view, rows))

    async def audit_report(self, name: str) -> Response:
        """The report of an audit, as the audit wrote it."""
        page = await asyncio.to_thread(self._facts.audits.report, name)
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})


def _with_reports(view: ViewTable, rows: Sequence[Mapping[str, Any]]) -> ViewTable:
    """The table of audits, in which the name of each that has a report leads to it."""
    linked = [
        [ViewCell(cells[0].text, link_to("audit-report", name=row["audit"])), *cells[1:]]
        if row["hasReport"]
        else cells
        for row, cells in zip(rows, view.rows, strict=True)
    ]
    return ViewTable(view.title, view.headings, linked, view.empty)
