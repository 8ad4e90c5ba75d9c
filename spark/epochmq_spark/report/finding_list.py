# pure: findings to a table
"""Renders the list of findings: a table that a small script sorts, filters and shows part by part. Without
scripts it has the first findings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

PART_ROWS: Final = 200  # rows that the page shows at a time; more would delay its opening
COLUMNS: Final = {
    "severity": "severity",
    "kind": "kind",
    "group": "group",
    "replica": "replica",
    "epoch": "epoch",
    "start_offset": "from offset",
    "end_offset": "to offset",
    "queue": "queue",
    "queue_offset": "queue offset",
    "message": "message id, key",
    "detail": "detail",
}

SCRIPT: Final = """
(() => {
  const rows = JSON.parse(document.getElementById("finding-data").textContent);
  const weights = {error: 0, warning: 1, note: 2}, part = __PART__;
  const by = id => document.getElementById(id), body = by("finding-rows");
  const heads = [...by("finding-heads").children];
  let column = -1, down = false, shown = part;
  for (const kind of [...new Set(rows.map(row => row[1]))].sort()) by("finding-kind").add(new Option(kind));
  const value = (row, at) => at === 0 ? weights[row[0]] : row[at];
  const chosen = () => {
    const text = by("finding-text").value.toLowerCase(), severity = by("finding-severity").value;
    const kind = by("finding-kind").value;
    const found = rows.filter(row => (!severity || row[0] === severity) && (!kind || row[1] === kind) &&
      (!text || row.some(cell => cell !== null && String(cell).toLowerCase().includes(text))));
    if (column >= 0) found.sort((one, other) => {
      const a = value(one, column), b = value(other, column);
      if (a === null || b === null) return (a === null) - (b === null);
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
    return found;
  };
  const show = () => {
    const found = chosen();
    body.replaceChildren(...found.slice(0, shown).map(row => {
      const line = document.createElement("tr");
      row.forEach((cell, at) => {
        const one = line.insertCell();
        one.textContent = cell === null ? "" : cell;
        if (typeof cell === "number") one.className = "n";
        if (at === 0) one.className = cell;
      });
      return line;
    }));
    by("finding-count").textContent = `${Math.min(shown, found.length)} of ${found.length} findings shown`;
    by("finding-more").hidden = found.length <= shown;
    heads.forEach((head, at) => at === column
      ? head.setAttribute("aria-sort", down ? "descending" : "ascending")
      : head.removeAttribute("aria-sort"));
  };
  heads.forEach((head, at) => head.firstChild.addEventListener("click", () => {
    down = column === at && !down; column = at; shown = part; show();
  }));
  for (const id of ["finding-text", "finding-severity", "finding-kind"])
    by(id).addEventListener("input", () => { shown = part; show(); });
  by("finding-more").addEventListener("click", () => { shown += part; show(); });
  by("finding-filters").hidden = false;
  show();
})();
"""


def render(found: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    """The parts of the page for the findings, the most severe first. `total` counts also those that are not
    listed."""
    if not found:
        return []
    rows = [_cells(row) for row in found]
    heads = "".join(
        f"<th scope='col'><button type='button'>{title}</button></th>" for title in COLUMNS.values()
    )
    first = "".join(_row(row) for row in rows[:PART_ROWS])
    severities = "".join(f"<option>{name}</option>" for name in ("error", "warning", "note"))
    return [
        f"<h2 id='finding-title'>{len(rows)} of {total} findings</h2>",
        "<div class='filters' id='finding-filters' role='search' aria-label='findings' hidden>",
        "<label>Text <input type='search' id='finding-text'></label>",
        f"<label>Severity <select id='finding-severity'><option value=''>all</option>{severities}</select>",
        "</label>",
        "<label>Kind <select id='finding-kind'><option value=''>all</option></select></label>",
        "<span id='finding-count' role='status'></span></div>",
        "<div class='scroll' tabindex='0' role='region' aria-labelledby='finding-title'><table>",
        f"<thead><tr id='finding-heads'>{heads}</tr></thead>",
        f"<tbody id='finding-rows'>{first}</tbody></table></div>",
        f"<button type='button' id='finding-more' hidden>Show {PART_ROWS} more</button>",
        f"<script type='application/json' id='finding-data'>{_json(rows)}</script>",
        f"<script>{SCRIPT.replace('__PART__', str(PART_ROWS))}</script>",
    ]


def _row(cells: Sequence[Any]) -> str:
    return "<tr>" + "".join(f"<td>{'' if one is None else escape(str(one))}</td>" for one in cells) + "</tr>"


def _cells(row: Mapping[str, Any]) -> list[Any]:
    queue = f"{row['topic']}/{row.get('queue_id')}" if row.get("topic") is not None else None
    message = ", ".join(text for text in (row.get("message_id"), row.get("key")) if text) or None
    detail = "; ".join(text for text in (row.get("detail"), row.get("file")) if text) or None
    values = {"queue": queue, "message": message, "detail": detail}
    return [values[name] if name in values else row.get(name) for name in COLUMNS]


def _json(rows: Sequence[Sequence[Any]]) -> str:
    """JSON that may stand in a script element."""
    return json.dumps(rows, separators=(",", ":")).replace("<", "\\u003c")
