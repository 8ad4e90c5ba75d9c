"""Prints the results of verbs: as tables for people, as JSON or YAML for programs, or as names for scripts.

Data alone goes to the standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

GAP = "   "
NONE = "-"


class ResultFormat(StrEnum):
    """The format of a result: tables, tables with all columns, for programs, or names alone."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `field` is the key of its values in the rows. `is_wide`: only in the format
    `wide`. Numbers stand at the right."""

    title: str
    field: str
    is_wide: bool = False
    is_time: bool = False
    """The values are ms since 1970; 0 means none."""


@dataclass(frozen=True, slots=True)
class OutputTable:
    """A table: its columns, and the rows by the columns' fields. `title` stands above it, if there are
    several."""

    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class VerbResult:
    """What a verb prints. `document` is what JSON and YAML show, `names` the names of the objects."""

    document: Any
    tables: Sequence[OutputTable]
    names: Sequence[str] = field(default_factory=tuple)


def print_result(result: VerbResult, output: ResultFormat) -> None:
    """Prints a result in the wanted format."""
    sys.stdout.write(format_result(result, output))
    sys.stdout.flush()


def format_result(result: VerbResult, output: ResultFormat) -> str:
    """The text of a result, with a line feed at its end."""
    if output is ResultFormat.JSON:
        encoded = msgspec.json.encode(result.document)
        return msgspec.json.format(encoded, indent=2).decode() + "\n"
    if output is ResultFormat.YAML:
        import yaml

        plain = msgspec.to_builtins(result.document)
        return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110))
    if output is ResultFormat.NAME:
        return "".join(f"{name}\n" for name in result.names)
    shown = [_format_table(table, is_wide=output is ResultFormat.WIDE) for table in result.tables]
    return "\n".join(shown)


def _format_table(table: OutputTable, *, is_wide: bool) -> str:
    if not table.rows and not table.title:
        return ""
    columns = [column for column in table.columns if is_wide or not column.is_wide]
    rows = [[cell_text(row.get(column.field), column) for column in columns] for row in table.rows]
    titles = [column.title for column in columns]
    widths = [max(len(cells[at]) for cells in (titles, *rows)) for at in range(len(columns))]
    numeric = [not column.is_time and are_numbers(table.rows, column.field) for column in columns]
    lines = [f"{table.title}:"] if table.title else []
    for cells in (titles, *rows):
        placed = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, numeric, strict=True)
        ]
        lines.append(GAP.join(placed).rstrip())
    return "\n".join(lines) + "\n"


def are_numbers(rows: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether all values of a column are numbers, and there is one."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return bool(values) and all(type(value) in (int, float) for value in values)


def cell_text(value: object, column: Column) -> str:
    """A value as the tables show it."""
    if value is None or value == "" or value == [] or value == {}:
        return NONE
    if column.is_time:
        return time_text(value) if isinstance(value, int) else str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ",".join(f"{key}={one}" for key, one in sorted(value.items()))
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)
    if isinstance(value, float):
        return f"{value:.1f}"
    return one_line(str(value))


def one_line(text: str) -> str:
    """The text without control characters, so that no message can change a terminal or break a table."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def time_text(epoch_ms: int) -> str:
    """A time as ISO 8601 in the zone of this machine, as `--time` reads it; `-` for none."""
    if epoch_ms <= 0:
        return NONE
    try:
        return datetime.fromtimestamp(epoch_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(epoch_ms)
