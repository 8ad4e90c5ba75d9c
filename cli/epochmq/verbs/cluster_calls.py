"""Runs a verb against a cluster, and asks before it changes something that cannot be brought back."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from typing import TYPE_CHECKING, TypeVar

from epochmq.exits import UsageError
from epochmq.verbs.output import ResultFormat
from epochmq.verbs.target import NameserverTarget

if TYPE_CHECKING:
    from epochmq.client.admin import AdminClient

R = TypeVar("R")

DAYS_BACK = {"today": 0, "yesterday": 1}
UNITS_MS = (("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000))


@dataclass(frozen=True, slots=True)
class ClusterVerb:
    """What the options of every administration verb say."""

    target: NameserverTarget
    output: ResultFormat
    timeout_s: float

    def run(
        self, action: Callable[[AdminClient], Awaitable[R]], *, nameservers: Sequence[str] | None = None
    ) -> R:
        """Runs an action with a client of the target's cluster; with `nameservers`, an action that asks no
        nameserver but the servers that it names itself needs no target."""
        from epochmq.client.admin import AdminClient

        known = self.target.nameservers() if nameservers is None else nameservers
        credentials, tls = self.target.credentials(), self.target.tls()

        async def main() -> R:
            async with AdminClient(
                known, credentials=credentials, tls=tls, timeout_ms=self.timeout_s * 1000
            ) as client:
                return await action(client)

        return asyncio.run(main())


def confirm(question: str, *, yes: bool) -> None:
    """Asks on the terminal, unless `yes`. Raises UsageError for a no, and where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} The input is no terminal: repeat the command with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")


def parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """The keys and values of `KEY=VALUE` options. Raises UsageError, also for a key that is given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key.strip() or not separator:
            raise UsageError(f"{option} {text}: expected KEY=VALUE")
        if key.strip() in pairs:
            raise UsageError(f"{option} {text}: {key.strip()} is given twice, expected one value")
        pairs[key.strip()] = value
    return pairs


def parse_time(option: str, text: str) -> int:
    """A time as ms since 1970: ISO 8601 (in the zone of this machine, if it names none), ms since 1970, or a
    span before now such as `90s`, `15m`, `3h`, `2d`, or `yesterday 14:00`. Raises UsageError."""
    now_ms = int(datetime.now().timestamp() * 1000)
    if text == "now":
        return now_ms
    if text.isascii() and text.isdecimal() and len(text) == 13:
        return int(text)
    span_ms = _span_ms(text)
    if span_ms is not None:
        return max(now_ms - span_ms, 0)
    try:
        wall_clock = _on_day(text, date.today()) or datetime.fromisoformat(text)
        return max(int(wall_clock.timestamp() * 1000), 0)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{option} {text}: expected a time such as 2030-01-31T14:00 or 'yesterday 14:00', ms since 1970, "
            "or 15m, 3h or 2d (before now)"
        ) from None


def parse_future(option: str, text: str) -> int:
    """A time as ms since 1970, as `parse_time`, but no span: before now there is nothing to wait for. Raises
    UsageError."""
    if _span_ms(text) is None:
        try:
            return parse_time(option, text)
        except UsageError:
            pass
    raise UsageError(
        f"{option} {text}: expected a time such as 2030-01-31T14:00 or ms since 1970; a span is for --delay"
    )


def parse_span(option: str, text: str) -> int:
    """A span of time in ms: `500ms`, `90s`, `15m`, `3h`, `2d`. Raises UsageError."""
    span_ms = _span_ms(text)
    if span_ms is None:
        raise UsageError(f"{option} {text}: expected a span such as 500ms, 90s, 15m, 3h or 2d")
    return span_ms


def _on_day(text: str, today: date) -> datetime | None:
    """The time of `yesterday 14:00` or `today 8:30:15`, in the zone of this machine; None if it is none."""
    day, _, clock = text.partition(" ")
    if day not in DAYS_BACK or not re.fullmatch(r"[0-9]{1,2}(:[0-9]{2}){1,2}", clock):
        return None
    hour, minute, *rest = map(int, clock.split(":"))
    second = rest[0] if rest else 0
    try:
        at = clock_time(hour, minute, second)
    except ValueError:
        return None
    return datetime.combine(today - timedelta(days=DAYS_BACK[day]), at)


def _span_ms(text: str) -> int | None:
    for unit, unit_ms in UNITS_MS:
        number = text.removesuffix(unit)
        if number != text and number.isascii() and number.isdecimal() and len(number) < 10:
            return int(number) * unit_ms
    return None


def parse_queue(text: str | None) -> tuple[str, int] | None:
    """The broker and the number of `BROKER:QUEUE`. Raises UsageError."""
    if text is None:
        return None
    broker, colon, number = text.rpartition(":")
    if not broker or not colon or not (number.isascii() and number.isdecimal()):
        raise UsageError(f"--queue {text}: expected BROKER:NUMBER, for example broker-a:0")
    return broker, int(number)
