"""Reads and compares values as Java does in RocketMQ's ComparisonExpression.

An expression has five types of values. Each has its Python class: `bool` (Boolean), `int` (Integer), `Long`,
`float` (Double) and `str` (String). None is NULL. The properties of messages are strings.
"""
# pure: functions over values

from __future__ import annotations

import math
import re
import struct
from typing import Final, TypeAlias

INTEGER_MIN, INTEGER_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1


class Long(int):
    """A Java Long; a plain int is a Java Integer."""

    __slots__ = ()


Value: TypeAlias = bool | int | Long | float | str | None


class EvaluationError(Exception):
    """The expression has no value for this message: a string is no number, or types do not fit. The message
    does not match."""


_INTEGER: Final = re.compile(r"[+-]?\d+")
_PLAIN_DIGITS_MAX: Final = 9
"""A number of so many digits is an Integer."""
_DOUBLE: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEX_DOUBLE: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_BLANK: Final = "".join(map(chr, range(0x21)))  # what String.trim removes
_BASIC_PLANE_END: Final = "\uffff"


def parse_integer(text: str, low: int = INTEGER_MIN, high: int = INTEGER_MAX) -> int:
    """Integer.valueOf, or Long.valueOf with its bounds. Raises EvaluationError."""
    if len(text) <= _PLAIN_DIGITS_MAX and text.isascii() and text.isdecimal():
        return int(text)
    # Java looks at 16-bit units, so it knows no digits beyond the basic plane.
    if _INTEGER.fullmatch(text) is not None and len(text) < 4000 and max(text) <= _BASIC_PLANE_END:
        number = int(text)
        if low <= number <= high:
            return number
    raise EvaluationError(f'For input string: "{text[:100]}"')


def parse_double(text: str) -> float:
    """Double.valueOf: decimal and hexadecimal forms, NaN and Infinity. Raises EvaluationError."""
    if text.isascii() and text.isdecimal():
        return float(text)
    trimmed = text.strip(_BLANK)
    if _DOUBLE.fullmatch(trimmed) is not None:
        if trimmed[-1] in "fFdD":
            trimmed = trimmed[:-1]
        return float(trimmed)
    found = _HEX_DOUBLE.fullmatch(trimmed)
    if found is None:
        raise EvaluationError(f'For input string: "{text[:100]}"')
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


def _compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: -0.0 is less than 0.0, and NaN is greater than every other number."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right != 0.0:
        return 0
    left_rank, right_rank = _rank(left), _rank(right)
    return (left_rank > right_rank) - (left_rank < right_rank)


def _rank(number: float) -> int:
    if math.isnan(number):
        return 1 << 63
    rank: int = struct.unpack(">q", struct.pack(">d", number))[0]
    return rank


def compare(left: bool | float | str, right: bool | float | str) -> int:
    """Compares two values that are not NULL; the sign of the result is the answer. If the types differ, one
    value is converted, strings included. Types that cannot be converted compare as less, whatever the order.
    Raises EvaluationError."""
    left_type, right_type = type(left), type(right)
    if left_type is not right_type:
        if left_type is bool:
            if right_type is str:
                raise EvaluationError("class java.lang.Boolean cannot be cast to class java.lang.String")
            return -1
        if left_type is str:
            if right_type is bool:
                assert isinstance(left, str)
                left = left.lower() == "true"
            else:
                left = _parse_as(right_type, left)
        elif right_type is str:
            right = _parse_as(left_type, right)
        elif right_type is bool:
            return -1
        elif left_type is float or right_type is float:
            left, right = float(left), float(right)
    if isinstance(left, float) and isinstance(right, float):
        return _compare_doubles(left, right)
    return (left > right) - (left < right)  # type: ignore[operator]  # both have the same type here


def _parse_as(wanted: type, text: object) -> float:
    """The number that a string becomes beside a number of the type `wanted`."""
    assert isinstance(text, str)
    if wanted is int:
        return parse_integer(text)
    if wanted is Long:
        return parse_integer(text, LONG_MIN, LONG_MAX)
    return parse_double(text)
