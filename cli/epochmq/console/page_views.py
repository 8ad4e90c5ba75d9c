"""Declares what the templates draw: tables of text, with links and tones, made from the tables of verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlencode

from rich.table import Table

from epochmq.client import ReceivedMessage
from epochmq.console.rate_samples import LineDrawing, SampleRing, SeriesName
from epochmq.verbs.message import messages_result
from epochmq.verbs.message_json import message_object
from epochmq.verbs.output import NONE, OutputTable, are_numbers, cell_text, one_line, time_text

SHOWN_BYTES_MAX = 64 * 1024
"""How much of a message's body a page shows."""
HEX_LINE = 16


class Tone(StrEnum):
    """Whether a state needs attention."""

    GOOD = "good"
    WAITING = "waiting"
    BAD = "bad"


TONES = {
    "Ready": Tone.GOOD,
    "serves": Tone.GOOD,
    "Waiting": Tone.WAITING,
    "Starting": Tone.WAITING,
    "Progressing": Tone.WAITING,
    "Stopping": Tone.WAITING,
    "Stopped": Tone.WAITING,
    "healthy": Tone.GOOD,
    "undecided": Tone.WAITING,
    "unfinished": Tone.WAITING,
    "enable": Tone.GOOD,
    "disable": Tone.WAITING,
    "Allow": Tone.GOOD,
}
"""The tone of a state's first word; each other word is bad."""
STATE_TITLE = "STATE"
TONED_TITLES = (STATE_TITLE, "STATUS", "DECISION")
ABBREVIATIONS = ("ID", "PID")


@dataclass(frozen=True, slots=True)
class ViewCell:
    """A cell. `link` is a path of the console, empty without one. `line` stands in place of the text."""

    text: str
    link: str = ""
    tone: Tone | None = None
    line: LineDrawing | None = None


@dataclass(frozen=True, slots=True)
class ViewHeading:
    """The head of a column. Numbers stand at the right."""

    title: str
    is_number: bool = False

    @property
    def shown(self) -> str:
        """The title as a page writes it."""
        return self.title if self.title in ABBREVIATIONS else self.title.capitalize()


@dataclass(frozen=True, slots=True)
class ViewTable:
    """A table with the text that stands in its place while it has no rows."""

    title: str
    headings: Sequence[ViewHeading]
    rows: Sequence[Sequence[ViewCell]]
    empty: str = "There is nothing to show."


@dataclass(frozen=True, slots=True)
class GroupCard:
    """A broker group, or a cluster, in short: its state and what is worth to know first."""

    name: str
    state: str
    tone: Tone
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class OverviewView:
    """The overview. `notes` say what could not be read, and why."""

    source: str
    cards: Sequence[GroupCard] = ()
    tables: Sequence[ViewTable] = ()
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class BodyView:
    """A message's body. `text` is None if it is no UTF-8 text. `cut_bytes` are not shown."""

    size_bytes: int
    text: str | None
    hex_lines: str
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message: its place and times, its properties, and its body."""

    topic: str
    message_id: str
    fields: ViewTable
    properties: ViewTable
    body: BodyView


def tone_of(state: str) -> Tone:
    """The tone of a state such as `Ready` or `Unready (it does not respond)`."""
    return TONES.get(state.partition(" ")[0], Tone.BAD)


def link_to(page: str, /, **query: object) -> str:
    """The path of a page with its query, encoded."""
    return f"/{page}?{urlencode(query)}" if query else f"/{page}"


def view_of(
    table: OutputTable,
    *,
    title: str | None = None,
    links: Mapping[str, str] | None = None,
    empty: str = "There is nothing to show.",
) -> ViewTable:
    """The table of a verb with all its columns. `links` are the pages to which the values of a column lead,
    by its field: `topic` leads to `/topic?name=VALUE`."""
    headings = [
        ViewHeading(column.title, not column.is_time and are_numbers(table.rows, column.field))
        for column in table.columns
    ]
    rows = []
    for row in table.rows:
        cells = []
        for column in table.columns:
            value = row.get(column.field)
            text = cell_text(value, column)
            page = (links or {}).get(column.field)
            cells.append(
                ViewCell(
                    text,
                    link_to(page, name=value) if page and isinstance(value, str) else "",
                    tone_of(text) if column.title in TONED_TITLES and text != NONE else None,
                )
            )
        rows.append(cells)
    return ViewTable(table.title if title is None else title, headings, rows, empty)


def with_lines(
    view: ViewTable, ring: SampleRing, names: Sequence[str], kinds: Mapping[str, tuple[str, str]]
) -> ViewTable:
    """The table with a further column for each kind of series: its line over time. `names` are the objects of
    the rows; `kinds` maps a kind to the title of the column before it, and to its own title."""
    headings, rows = list(view.headings), [list(row) for row in view.rows]
    for kind, (before, title) in kinds.items():
        at = 1 + next(at for at, one in enumerate(headings) if one.title == before)
        headings.insert(at, ViewHeading(title))
        for name, row in zip(names, rows, strict=True):
            line = ring.drawing(SeriesName(kind, name))
            row.insert(at, ViewCell(NONE, line=line))
    return ViewTable(view.title, headings, rows, view.empty)


def view_of_terminal(table: Table, title: str) -> ViewTable:
    """A table of `epochmq status`, in the same words. The state stands second, where a narrow window still
    shows it."""
    places = sorted(
        range(len(table.columns)),
        key=lambda at: 0 if at == 0 else 1 if table.columns[at].header == STATE_TITLE else 2,
    )
    chosen = [table.columns[at] for at in places]
    titles = [str(column.header) for column in chosen]
    columns = [[one_line(str(cell)) for cell in column.cells] for column in chosen]
    headings = [
        ViewHeading(name, column.justify == "right") for name, column in zip(titles, chosen, strict=True)
    ]
    rows = [
        [
            ViewCell(text or "-", tone=tone_of(text) if name == STATE_TITLE else None)
            for name, text in zip(titles, texts, strict=True)
        ]
        for texts in zip(*columns, strict=True)
    ]
    return ViewTable(title, headings, rows)


def messages_view(found: Sequence[ReceivedMessage], *, with_ids: bool = False) -> ViewTable:
    """Found messages, each with a link to its own page; with their ids where a form names them by id."""
    (table,) = messages_result(found, with_ids=with_ids).tables
    columns = [column for column in table.columns if not column.is_wide]
    at = [column.field for column in columns].index("queueOffset")
    view = view_of(OutputTable(columns, table.rows), title="", empty="The topic has no such message.")
    rows = []
    for one, cells in zip(found, view.rows, strict=True):
        place = link_to(
            "message",
            topic=one.queue.topic,
            queue=f"{one.queue.broker_name}:{one.queue.queue_id}",
            offset=one.record.queue_offset,
        )
        rows.append([*cells[:at], ViewCell(cells[at].text, place), *cells[at + 1 :]])
    return ViewTable("", view.headings, rows, view.empty)


def message_view(received: ReceivedMessage) -> MessageView:
    """A message as its page shows it."""
    shown = message_object(received)
    times = ("bornTimestamp", "storeTimestamp")
    fields = [
        [
            ViewCell(name),
            ViewCell(time_text(value) if name in times else "-" if value is None else one_line(str(value))),
        ]
        for name, value in shown.items()
        if name not in ("properties", "body", "bodyBase64")
    ]
    properties = [
        [ViewCell(one_line(name)), ViewCell(one_line(value))]
        for name, value in sorted(received.properties.items())
    ]
    return MessageView(
        topic=one_line(received.record.topic),
        message_id=one_line(str(shown["msgId"])),
        fields=ViewTable("Place and times", [ViewHeading("FIELD"), ViewHeading("VALUE")], fields),
        properties=ViewTable(
            "Properties",
            [ViewHeading("NAME"), ViewHeading("VALUE")],
            properties,
            "The message has no properties.",
        ),
        body=body_view(received.body),
    )


def body_view(body: bytes) -> BodyView:
    """The begin of a body as text and in hexadecimal."""
    shown = body[:SHOWN_BYTES_MAX]
    try:
        body.decode()
    except UnicodeDecodeError:
        text = None
    else:
        text = "\n".join(map(_visible, shown.decode(errors="ignore").split("\n")))
    return BodyView(len(body), text, _hex_dump(shown), len(body) - len(shown))


def _visible(line: str) -> str:
    """A line without control characters, but with its tabs."""
    return "\t".join(map(one_line, line.removesuffix("\r").split("\t")))


def _hex_dump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), HEX_LINE):
        part = data[start : start + HEX_LINE]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * HEX_LINE - 1}}  {letters}")
    return "\n".join(lines)
