"""Draws docs/architecture.svg from docs/architecture.toml: boxes on a grid, and arrows between their edges.

    .venv/bin/python -m tools.diagram            # writes the picture
    .venv/bin/python -m tools.diagram --check    # ends with 1 if the picture is not that of the source

The same source gives the same bytes on every machine. No program or font is needed to draw: text is placed by
the reader's browser."""

from __future__ import annotations

import argparse
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "architecture.toml"
PICTURE = ROOT / "docs" / "architecture.svg"
UNIT = 10
"""Pixels of a grid unit."""
LINE_PX = 17
STYLE = """\
svg { background: #ffffff; }
text { font-family: sans-serif; font-size: 13px; fill: #1f2328; }
.title { font-weight: bold; }
.label { font-size: 12px; fill: #57606a; paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
.box { fill: #ddf4ff; stroke: #0969da; }
.frame { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 5 4; }
.arrow { stroke: #57606a; fill: none; }
.head { fill: #57606a; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; }
  text { fill: #e6edf3; }
  .label { fill: #9da7b3; stroke: #0d1117; }
  .box { fill: #12304f; stroke: #58a6ff; }
  .frame { fill: #161b22; stroke: #6e7681; }
  .arrow { stroke: #9da7b3; }
  .head { fill: #9da7b3; }
}"""


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, with its text."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2


def draw(text: str) -> str:
    """The picture of a source."""
    source = tomllib.loads(text)
    frames = {one["id"]: _box(one) for one in source["frame"]}
    boxes = {one["id"]: _box(one) for one in source["box"]}
    width, height = source["width"] * UNIT, source["height"] * UNIT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<!-- Drawn by tools/diagram.py from architecture.toml; do not edit. -->",
        f"<title>{escape(source['title'])}</title>",
        f"<style>\n{STYLE}\n</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/></marker></defs>',
        *(_rectangle(frame, "frame") for frame in frames.values()),
        *(
            f'<text class="title" x="{frame.x + 12}" y="{frame.y + 20}">{escape(frame.title)}</text>'
            for frame in frames.values()
        ),
        *(line for one in source["arrow"] for line in _arrow(frames | boxes, one)),
        *(line for box in boxes.values() for line in _boxed(box)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(one: Mapping[str, Any]) -> Box:
    (x, y), (width, height) = one["at"], one["size"]
    return Box(x * UNIT, y * UNIT, width * UNIT, height * UNIT, one["title"], tuple(one.get("lines", ())))


def _rectangle(box: Box, kind: str) -> str:
    return f'<rect class="{kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>'


def _boxed(box: Box) -> list[str]:
    x, _ = box.middle
    return [
        _rectangle(box, "box"),
        f'<text class="title" text-anchor="middle" x="{x:g}" y="{box.y + 22}">{escape(box.title)}</text>',
        *(
            f'<text text-anchor="middle" x="{x:g}" y="{box.y + 24 + LINE_PX * number}">{escape(line)}</text>'
            for number, line in enumerate(box.lines, 1)
        ),
    ]


def _arrow(boxes: Mapping[str, Box], one: Mapping[str, Any]) -> list[str]:
    """The arrow and its label."""
    begin, end = boxes[one["from"]], boxes[one["to"]]
    if one.get("via") == "under":
        points = _under(begin, end)
    elif "shift" in one:
        points = _upright(begin, end, one["shift"] * UNIT)
    else:
        points = [_edge(begin, end.middle), _edge(end, begin.middle)]
    path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    start = ' marker-start="url(#head)"' if one.get("both") else ""
    lines = [f'<path class="arrow" d="{path}" marker-end="url(#head)"{start}/>']
    x, y = _along(points, one.get("label_at", 0.5))
    label = escape(one["label"])
    return [*lines, f'<text class="label" text-anchor="middle" x="{x:g}" y="{y - 5:g}">{label}</text>']


def _under(begin: Box, end: Box) -> list[tuple[float, float]]:
    """From the lower edge of one box to that of another, below what is in between."""
    level = max(begin.y + begin.height, end.y + end.height) + 2 * UNIT
    left, right = begin.middle[0] + UNIT, end.middle[0]
    return [(left, begin.y + begin.height), (left, level), (right, level), (right, end.y + end.height)]


def _upright(begin: Box, end: Box, shift: int) -> list[tuple[float, float]]:
    """Straight up or down, beside the middle of the first box."""
    x = begin.middle[0] + shift
    if begin.y > end.y:
        return [(x, begin.y), (x, end.y + end.height)]
    return [(x, begin.y + begin.height), (x, end.y)]


def _edge(box: Box, toward: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the box's middle to a point leaves the box."""
    x, y = box.middle
    dx, dy = toward[0] - x, toward[1] - y
    shares = [half / abs(d) for half, d in ((box.width / 2, dx), (box.height / 2, dy)) if d]
    return round(x + dx * min(shares), 1), round(y + dy * min(shares), 1)


def _along(points: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    """The point at this share of the way; of a bent arrow, of its longest part."""
    begin, end = max(
        itertools.pairwise(points),
        key=lambda part: abs(part[0][0] - part[1][0]) + abs(part[0][1] - part[1][1]),
    )
    return (
        round(begin[0] + (end[0] - begin[0]) * share, 1),
        round(begin[1] + (end[1] - begin[1]) * share, 1),
    )


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.diagram", description="Draws docs/architecture.svg."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if it would change")
    picture = draw(SOURCE.read_text(encoding="utf-8"))
    if parser.parse_args().check:
        return int(not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture)
    PICTURE.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
