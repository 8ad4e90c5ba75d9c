# pure: numbers to SVG
"""Draws the plots of the report as SVG: logs and epochs as bars, findings as marks. Findings that would
overlap are one mark, so a plot has a bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

WIDTH, LEFT, BAR, GAP = 960, 150, 22, 14
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f")
MARK_WIDTH = 3  # pixels; findings that are nearer to each other share a mark
SEVERITIES = ("error", "warning", "note")
DASHES = {"error": "", "warning": "6 3", "note": "2 3"}  # tells severities apart without colours


class _Scale:
    def __init__(self, members: Sequence[Mapping[str, Any]]) -> None:
        known = [one for one in members if one["logEnd"] is not None]
        self.low = min((one["logStart"] for one in known), default=0)
        self.high = max(max((one["logEnd"] for one in known), default=1), self.low + 1)

    def __call__(self, offset: int) -> float:
        share = (min(max(offset, self.low), self.high) - self.low) / (self.high - self.low)
        return LEFT + share * (WIDTH - LEFT - 10)


def logs(members: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each replica, coloured by epoch, with a mark at each finding."""
    scale = _Scale(members)
    height = len(members) * (BAR + GAP) + 40
    parts = [_open(height, "the replicas' logs by offset, coloured by epoch")]
    for row, member in enumerate(members):
        y = row * (BAR + GAP) + 10
        parts.append(_text(LEFT - 8, y + 15, member["replica"], "end"))
        if member["logEnd"] is None:
            parts.append(_text(LEFT, y + 15, "not read", "start"))
            continue
        entries = member["epochs"] or [[None, member["logStart"]]]
        for at, (epoch, start) in enumerate(entries):
            stop = entries[at + 1][1] if at + 1 < len(entries) else member["logEnd"]
            x, end = scale(max(start, member["logStart"])), scale(min(max(stop, start), member["logEnd"]))
            colour = "#999" if epoch is None else COLOURS[epoch % len(COLOURS)]
            title = "no epoch" if epoch is None else f"epoch {epoch}, {start} to {stop}"
            parts.append(
                f"<rect x='{x:.1f}' y='{y}' width='{max(end - x, 0.5):.1f}' height='{BAR}' fill='{colour}'>"
                f"<title>{title}</title></rect>"
            )
            if epoch is not None and end - x > 24:
                parts.append(_text((x + end) / 2, y + 15, str(epoch), "middle", "in-bar"))
        own = [finding for finding in found if finding.get("replica") == member["replica"]]
        parts += [_mark(x, y, group) for x, group in _grouped(scale, own)]
        if member.get("confirmOffset"):
            x = scale(member["confirmOffset"])
            title = f"confirm offset {member['confirmOffset']}"
            parts.append(f"<path class='confirm' d='M{x:.1f} {y}l-5 -8h10z'><title>{title}</title></path>")
    return "".join(parts) + _axis(scale, height - 22) + "</svg>"


def findings(members: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> str:
    """A row for each kind, with a mark at the offset of each finding."""
    kinds = sorted({row["kind"] for row in found if row.get("start_offset") is not None})
    if not kinds:
        return "<p>No finding has an offset in the log.</p>"
    scale = _Scale(members)
    height = len(kinds) * 26 + 40
    parts = [_open(height, "findings by kind and offset")]
    for row, kind in enumerate(kinds):
        y = row * 26 + 6
        parts.append(_text(LEFT - 8, y + 14, kind, "end"))
        parts.append(f"<path d='M{LEFT} {y + 10}H{WIDTH - 10}' stroke='#8884'/>")
        parts += [
            f"<circle class='{group[0]['severity']}' cx='{x:.1f}' cy='{y + 10}' r='4'>"
            f"<title>{escape(_title(group))}</title></circle>"
            for x, group in _grouped(scale, [one for one in found if one["kind"] == kind])
        ]
    return "".join(parts) + _axis(scale, height - 22) + "</svg>"


def epochs(members: Sequence[Mapping[str, Any]]) -> str:
    """A row for each replica: its epochs by the store time of their first message, up to the log's last
    message."""
    times = [time for one in members for _, time in one["epochTimes"] if time]
    if not times:
        return "<p>No epoch has a message.</p>"
    low, high = min(times), max([*times, *(one["lastTime"] for one in members)])
    width = WIDTH - LEFT - 10

    def position(time: int) -> float:
        return LEFT + width * (min(max(time, low), high) - low) / max(high - low, 1)

    height = len(members) * (BAR + GAP) + 40
    parts = [_open(height, "epochs over time, by replica")]
    for row, one in enumerate(members):
        y = row * (BAR + GAP) + 10
        parts.append(_text(LEFT - 8, y + 15, one["replica"], "end"))
        known = [(epoch, time) for epoch, time in one["epochTimes"] if time]
        for (epoch, time), end in zip(known, [t for _, t in known[1:]] + [one["lastTime"]], strict=False):
            x, right = position(time), position(end)
            parts.append(
                f"<rect x='{x:.1f}' y='{y}' width='{max(right - x, 1):.1f}' height='{BAR}' "
                f"fill='{COLOURS[epoch % len(COLOURS)]}'>"
                f"<title>epoch {epoch} from {_time(time)}</title></rect>"
            )
            if right - x > 24:
                parts.append(_text((x + right) / 2, y + 15, str(epoch), "middle", "in-bar"))
    parts.append(f"<path d='M{LEFT} {height - 22}H{WIDTH - 10}' stroke='currentColor'/>")
    parts += [_text(LEFT, height - 6, _time(low), "start"), _text(WIDTH - 10, height - 6, _time(high), "end")]
    return "".join(parts) + "</svg>"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _open(height: int, title: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' font-size='12' role='img' "
        f"aria-label='{escape(title)}'>"
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f"<text class='{kind}' x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def _grouped(
    scale: _Scale, found: Iterable[Mapping[str, Any]]
) -> list[tuple[float, list[Mapping[str, Any]]]]:
    """Findings by the place of their mark, the most severe first."""
    by_place: dict[int, list[Mapping[str, Any]]] = {}
    for one in found:
        if one.get("start_offset") is not None:
            by_place.setdefault(round(scale(one["start_offset"]) / MARK_WIDTH), []).append(one)
    for group in by_place.values():
        group.sort(key=lambda one: SEVERITIES.index(one["severity"]))
    return [(place * MARK_WIDTH, group) for place, group in sorted(by_place.items())]


def _title(group: Sequence[Mapping[str, Any]]) -> str:
    first = group[0]
    text = f"{first['severity']}: {first['kind']} at {first['start_offset']}, {first['replica']}"
    if len(group) == 1:
        return text
    kinds = ", ".join(
        f"{count} {kind}" for kind, count in Counter(one["kind"] for one in group).most_common(5)
    )
    return f"{len(group)} findings near {first['start_offset']}: {kinds}"


def _mark(x: float, y: int, group: Sequence[Mapping[str, Any]]) -> str:
    severity = group[0]["severity"]
    return (
        f"<path class='mark {severity}' d='M{x:.1f} {y - 4}v{BAR + 8}' "
        f"stroke-dasharray='{DASHES[severity]}'><title>{escape(_title(group))}</title></path>"
    )


def legend() -> str:
    """What colours and marks mean, as a list."""
    bars = "".join(f"<span class='swatch' style='background:{colour}'></span>" for colour in COLOURS[:4])
    items = [
        f"{bars} epochs; the number is in the bar, or under the pointer",
        "<span class='swatch' style='background:#999'></span> bytes without an epoch",
    ]
    items += [
        f"<svg width='12' height='18' aria-hidden='true'><path class='mark {severity}' d='M6 1v16' "
        f"stroke-dasharray='{DASHES[severity]}'/></svg> {severity}"
        for severity in SEVERITIES
    ]
    items.append(
        "<svg width='12' height='12' aria-hidden='true'><path class='confirm' d='M6 11l-5 -8h10z'/></svg> "
        "confirm offset of the checkpoint"
    )
    return "<ul class='legend' aria-label='legend'>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _axis(scale: _Scale, y: int) -> str:
    parts = [f"<path d='M{LEFT} {y}H{WIDTH - 10}' stroke='currentColor'/>"]
    for step in range(5):
        offset = scale.low + (scale.high - scale.low) * step // 4
        anchor = "start" if step == 0 else "end" if step == 4 else "middle"
        parts.append(_text(scale(offset), y + 16, f"{offset:,}", anchor))
    return "".join(parts)
