"""Generates SQL92 expressions, valid and invalid ones, and messages for them."""

from __future__ import annotations

import random

NAMES = ("a", "b", "c", "_d", "$e", "F9", "missing")
NUMBERS = (
    *("0", "1", "5", "10", "2147483647", "2147483648", "9223372036854775807", "1L", "5l", "1.0", "1.5"),
    *(".5", "5.", "1e3", "1E-3", "2.5e+2", "4.9e-324", "1.7976931348623157e308", "16777217.0", "05.5"),
    *("9007199254740993", "5.0", "-1", "-5", "-1.5", "- 2147483648", "+7"),
)
ODD_NUMBERS = ("9223372036854775808", "007", "0.0", "0L", "0x10", "1e400", "1e-400", "5e")
STRINGS = (
    *("", "x", "5", "it''s", "ab", "red", "true", "TRUE", "1.5", "NaN", "1e3", "日本", "a b", "%"),
    *("2147483648", "-5", "''", "0x1p3", "5 "),
)
VALUES = (
    *(
        "0",
        "1",
        "5",
        "-1",
        "+5",
        "-5",
        "1.0",
        "1.5",
        ".5",
        "5.",
        "1e3",
        "NaN",
        "Infinity",
        "-Infinity",
        "-0.0",
    ),
    *(
        "0.0",
        "x",
        "ab",
        "abc",
        "red",
        "it's",
        "true",
        "TRUE",
        "false",
        "tRuE",
        "",
        " ",
        " 5 ",
        "5 ",
        "1_0",
        "0x1p3",
    ),
    *(
        "0x10",
        "1e400",
        "-1e400",
        "1e-400",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "5f",
        "5D",
    ),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "9007199254740993", "nan", "inf"),
    *("16777217", "٥", "５", "日本", "'", "1e", "e1", "+", "-", "--5", "0x1p3f", "0x.8p1", "1L", "infinity"),
)
WORDS = (
    "AND",
    "OR",
    "NOT",
    "IN",
    "IS",
    "NULL",
    "BETWEEN",
    "TRUE",
    "FALSE",
    "CONTAINS",
    "STARTSWITH",
    "ENDSWITH",
)
SIGNS = (
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "(",
    ")",
    ",",
    "+",
    "-",
    "!",
    "/",
    "*",
    "'",
    "--",
    "--x\n",
    "/*x*/",
    "/*",
)


def message(rng: random.Random) -> dict[str, str]:
    """The properties of a message; `missing` is never one of them."""
    return {name: rng.choice(VALUES) for name in NAMES[:-1] if rng.random() < 0.8}


def expression(rng: random.Random) -> str:
    """An expression: mostly a valid one, at times with a change, at times any tokens."""
    kind = rng.random()
    if kind < 0.1:
        return " ".join(_any_token(rng) for _ in range(rng.randint(0, 8)))
    text = _or(rng, 3)
    if kind < 0.25:
        words = text.split(" ")
        words[rng.randrange(len(words))] = rng.choice((_any_token(rng), ""))
        text = " ".join(words)
    elif kind < 0.3 and text:
        at = rng.randrange(len(text))
        text = (
            text[:at]
            + rng.choice(("", "'", " ", "\n", "5", "(", ")", "é", "\t", "\x00", "."))
            + text[at + 1 :]
        )
    return text


def _any_token(rng: random.Random) -> str:
    return rng.choice(
        (rng.choice(NAMES), rng.choice(NUMBERS), _string(rng), rng.choice(WORDS).lower(), rng.choice(SIGNS))
    )


def _word(rng: random.Random, word: str) -> str:
    return word if rng.random() < 0.8 else rng.choice((word.lower(), word.capitalize()))


def _string(rng: random.Random) -> str:
    return f"'{rng.choice(STRINGS)}'"


def _or(rng: random.Random, depth: int) -> str:
    return f" {_word(rng, 'OR')} ".join(_and(rng, depth) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _and(rng: random.Random, depth: int) -> str:
    return f" {_word(rng, 'AND')} ".join(_equality(rng, depth) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _equality(rng: random.Random, depth: int) -> str:
    text = _comparison(rng, depth)
    while rng.random() < 0.3:
        text += rng.choice(
            (
                f" = {_comparison(rng, depth)}",
                f" <> {_comparison(rng, depth)}",
                f" {_word(rng, 'IS')} {_word(rng, 'NULL')}",
                f" IS {_word(rng, 'NOT')} NULL",
            )
        )
    return text


def _comparison(rng: random.Random, depth: int) -> str:
    negated = rng.choice(("", f" {_word(rng, 'NOT')}"))
    kind = rng.random()
    if kind < 0.15:
        return _unary(rng, depth)
    if kind < 0.3:
        return f"{_any_value(rng, depth)} {rng.choice(('=', '<>'))} {_any_value(rng, depth)}"
    if kind < 0.55:
        return f"{_operand(rng, depth)} {rng.choice(('<', '<=', '>', '>='))} {_operand(rng, depth)}"
    if kind < 0.7:
        low, high = _operand(rng, depth), _operand(rng, depth)
        return f"{_operand(rng, depth)}{negated} {_word(rng, 'BETWEEN')} {low} AND {high}"
    if kind < 0.85:
        words = rng.choice((", ", ",", " , ")).join(_string(rng) for _ in range(rng.choice((1, 2, 3, 6))))
        left = rng.choice(NAMES) if rng.random() < 0.97 else _unary(rng, depth)
        return f"{left}{negated} {_word(rng, 'IN')} ({words})"
    test = _word(rng, rng.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")))
    return f"{_any_value(rng, depth)}{negated} {test} {_string(rng)}"


def _operand(rng: random.Random, depth: int) -> str:
    """What has an order; seldom something else."""
    kind = rng.random()
    if kind < 0.02:
        return _any_value(rng, depth)
    if kind < 0.04:
        return rng.choice(ODD_NUMBERS)
    if kind < 0.4:
        return rng.choice((rng.choice(NUMBERS), str(rng.randint(0, 99))))
    return f"-{rng.choice(NAMES)}" if kind < 0.45 else rng.choice(NAMES)


def _any_value(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NAMES)
    if kind < 0.7:
        return rng.choice(NUMBERS)
    if kind < 0.9:
        return _string(rng)
    return _unary(rng, depth)


def _unary(rng: random.Random, depth: int) -> str:
    """What has a truth value; seldom something else."""
    kind = rng.random()
    if kind < 0.02:
        return rng.choice((*NUMBERS, *ODD_NUMBERS, _string(rng), "-a"))
    if kind < 0.4:
        return rng.choice(NAMES)
    if kind < 0.55:
        return _word(rng, rng.choice(("TRUE", "FALSE", "NULL")))
    if kind < 0.75:
        return f"{rng.choice(('NOT ', 'NOT ', '+', '+ '))}{_unary(rng, depth)}"
    return f"({_or(rng, depth - 1)})" if depth else rng.choice(NAMES)
