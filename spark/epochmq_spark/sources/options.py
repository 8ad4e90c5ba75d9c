"""Checks the options of the data sources. All functions raise ValueError with the name of the option, its
value and what was expected.

Spark passes the names of options in lower case, so they are compared without case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


def check_names(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Raises ValueError if there is an option that the source does not know."""
    by_name = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in by_name:
            similar = difflib.get_close_matches(name.lower(), by_name, 1)
            meant = f"; do you mean {by_name[similar[0]]}?" if similar else ""
            expected = ", ".join(sorted(by_name.values(), key=str.lower))
            raise ValueError(f"option {name}: unknown, expected one of {expected}{meant}")


def flag_option(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """An option that is `true` or `false`."""
    text = options.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"option {name}: {text!r}, expected true or false")
    return text.strip().lower() == "true"


def positive_option(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a whole number, at least 1."""
    text = options.get(name, str(default)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"option {name}: {text!r}, expected a whole number, at least 1")
    return int(text)


def names_option(options: Mapping[str, str], name: str) -> frozenset[str] | None:
    """An option of names, separated by commas; None without it."""
    text = options.get(name)
    if text is None:
        return None
    names = frozenset(one.strip() for one in text.split(","))
    if "" in names or "\ufffd" in text:  # which stands for bytes that are not UTF-8
        raise ValueError(f"option {name}: {text!r}, expected names separated by commas")
    return names


def columns_option(options: Mapping[str, str], known: pa.Schema) -> pa.Schema | None:
    """The columns that the option `columns` names, separated by commas; None without the option."""
    text = options.get("columns")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known.names:
            expected = f"expected names separated by commas, of {', '.join(known.names)}"
            raise ValueError(f"option columns: {name!r} in {text!r} is no column, {expected}")
    if len(set(names)) < len(names):
        raise ValueError(f"option columns: {text!r} names a column twice, expected each at most once")
    return pa.schema([known.field(name) for name in names])


def stated_schema(schema: StructType, known: pa.Schema) -> pa.Schema:
    """The columns of a schema that a user stated (`spark.read.schema(…)`)."""
    if not schema.fields:
        raise ValueError("schema: it has no column, expected at least one")
    types = {one.name: one.dataType for one in from_arrow_schema(known)}
    for one in schema.fields:
        if one.name not in types:
            expected = ", ".join(known.names)
            raise ValueError(f"schema: the source has no column {one.name!r}, expected some of {expected}")
        if one.dataType != types[one.name]:
            found, expected = one.dataType.simpleString(), types[one.name].simpleString()
            raise ValueError(f"schema: column {one.name} is {found}, expected {expected}")
        if not one.nullable:
            raise ValueError(f"schema: column {one.name} is NOT NULL, expected a column that may be null")
    if len(set(schema.names)) < len(schema.names):
        raise ValueError(f"schema: {schema.simpleString()} has a column twice, expected each at most once")
    return pa.schema([known.field(name) for name in schema.names])
