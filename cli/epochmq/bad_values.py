"""Says what is wrong with the value of an option or an argument: the value, and what was expected.

Typer converts values by pydantic, whose texts name neither (`Input should be a valid integer, unable to parse
string as an integer`)."""

from __future__ import annotations

from typing import Any, Final

import typer

SHOWN_MAX: Final = 60
"""Characters of a value that an error shows."""
_EXPECTED: Final = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
}
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_CHOICES: Final = " is not one of "


def bad_value_text(error: typer.BadParameter) -> str:
    """The text for a value that could not be converted; other errors keep theirs."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return error.message
    return _text(details()[0])


def _text(detail: dict[str, Any]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        field, words = _BOUNDS[kind]
        expected = f"{words} {context[field]}"
    elif kind in _EXPECTED:
        expected = _EXPECTED[kind]
    elif _CHOICES in detail["msg"]:
        expected = detail["msg"].partition(_CHOICES)[2].rstrip(".").replace("'", "")
        expected = " or ".join(expected.rsplit(", ", 1))
    else:
        return str(detail["msg"])
    shown = str(detail["input"])
    shown = shown if len(shown) <= SHOWN_MAX else f"{shown[: SHOWN_MAX - 1]}…"
    return f"{shown!r}, expected {expected}"
