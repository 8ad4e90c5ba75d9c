# pure: a summary to a page
"""Renders the report: one HTML page with embedded SVG, readable without a network, in light and dark mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from epochmq_spark.findings import KINDS
from epochmq_spark.report import finding_list, plots

STYLE = """
:root { color-scheme: light dark; --line: #8884;
  --healthy: #2a8a4a; --damaged: #c62f3b; --undecided: #b07a12; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { padding: .2rem .7rem; border-radius: .3rem; color: #fff; }
pre { margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } svg { max-width: 100%; height: auto; } svg text { fill: currentColor; }
svg text.in-bar { fill: #111; }
.error { color: var(--damaged); } .warning { color: var(--undecided); }
.mark { stroke-width: 2; } .mark.error { stroke: var(--damaged); } .mark.warning { stroke: var(--undecided); }
.mark.note { stroke: currentColor; } circle.error { fill: var(--damaged); }
circle.warning { fill: var(--undecided); } circle.note, .confirm { fill: currentColor; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; font-size: 13px; }
.swatch { display: inline-block; width: .9rem; height: .9rem; vertical-align: -2px; margin-right: 2px; }
th button { all: unset; cursor: pointer; font-weight: bold; } th button:focus-visible,
.scroll:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
.filters { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; margin: .6rem 0; }
@media (prefers-color-scheme: dark) { :root { --damaged: #ff7b83; --undecided: #e6b450; --healthy: #57c07a; }
  .verdict { color: #111; } }
"""


def render(summary: Mapping[str, Any], listed: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The page for a summary (`verdict.summary`). `listed` are the findings to show; those of the summary if
    it is None."""
    shown = summary["findings"] if listed is None else listed
    verdict = summary["verdict"]
    when = datetime.fromtimestamp(summary.get("startedAt", 0) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    groups = sorted({one["group"] for one in summary["replicas"]})
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>Audit of {escape(', '.join(groups))}: {verdict}</title><style>{STYLE}</style>",
        f"<h1>Audit of {escape(', '.join(groups))}: <span class='verdict' ",
        f"style='background:var(--{verdict})'>{verdict}</span></h1>",
        f"<p>{when}, {summary.get('seconds', '?')} s, {len(summary['replicas'])} replicas; "
        f"EpochMQ {escape(str(summary.get('version', 'of an unknown version')))}.</p>",
    ]
    for group in groups:
        members = [one for one in summary["replicas"] if one["group"] == group]
        found = [row for row in shown if row["group"] == group]
        parts += [
            f"<h2>{escape(group)}: epochs and logs, by offset</h2>",
            plots.legend(),
            plots.logs(members, found),
            f"<h2>{escape(group)}: epochs over time</h2>",
            plots.epochs(members),
            f"<h2>{escape(group)}: replicas</h2>",
            _replicas(members),
        ]
        if any(found):
            parts += [f"<h2>{escape(group)}: findings by offset</h2>", plots.findings(members, found)]
    parts += _plan(summary)
    parts += _coverage(summary)
    parts += ["<h2>Findings</h2>", _counts(summary["findingCounts"])]
    parts += finding_list.render(shown, sum(summary["findingCounts"].values()))
    return "\n".join(parts) + "\n"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th scope='col'>{title}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='scroll' tabindex='0'>{table}</div>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    kind = " class='n'" if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


def _replicas(members: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in members:
        epochs = ", ".join(f"{epoch} from {start}" for epoch, start in one["epochs"])
        cells = [one["replica"], one["place"], one["logStart"], one["logEnd"], one["commonEnd"]]
        cells += [one.get("confirmOffset"), epochs]
        rows.append([_cell(value) for value in cells])
    return _table(
        ["replica", "location", "log start", "log end", "common end", "confirm offset", "epochs"], rows
    )


def _plan(summary: Mapping[str, Any]) -> list[str]:
    """The steps of repair, in their order."""
    steps = summary.get("fixPlan")
    if not steps:
        return []
    rows = [
        [
            _cell(number),
            _cell(f"{step['group']}: {', '.join(step['replicas'])}" if step["replicas"] else step["group"]),
            _cell(", ".join(step["kinds"])),
            f"<td>{escape(step['text'])}{_commands(step['commands'])}</td>",
        ]
        for number, step in enumerate(steps, 1)
    ]
    return ["<h2>Repair</h2>", _table(["step", "replicas", "findings", "what to do"], rows)]


def _commands(commands: Sequence[str]) -> str:
    return "".join(f"<pre>{escape(one)}</pre>" for one in commands)


COVERED = {
    "replicasSupplied": "replicas supplied",
    "replicasRead": "replicas that could be read",
    "replicasCompared": "replicas compared with another one",
    "comparedBytes": "bytes of logs compared with another replica",
    "bytes": "bytes of records read",
    "records": "records read",
    "units": "units of consume queues read",
    "indexEntries": "index entries read",
}


def _coverage(summary: Mapping[str, Any]) -> list[str]:
    coverage = summary.get("coverage")
    if not coverage:
        return []
    counts = [[_cell(title), _cell(coverage[name])] for name, title in COVERED.items()]
    parts = ["<h2>What was compared</h2>", _table(["what", "number"], counts)]
    columns = ("replica", "compared", "bytes", "records", "units", "indexEntries")
    rows = []
    for one in summary["replicas"]:
        compared = one.get("compared")
        span = f"{compared[0]} to {compared[1]}" if compared else "nothing"
        cells = [f"{one['group']}/{one['replica']}", span, *(one.get(name) for name in columns[2:])]
        rows.append([_cell(value) for value in cells])
    titles = ["replica", "offsets compared", "bytes", "records", "units", "index entries"]
    parts += [_table(titles, rows), f"<h2>What was left out: {coverage['leftOutCount']}</h2>"]
    left_out = [
        [_cell(one[name]) for name in ("group", "replica", "what", "why")] for one in coverage["leftOut"]
    ]
    return [*parts, _table(["group", "replica", "what", "why"], left_out) if left_out else "<p>Nothing.</p>"]


def _counts(counts: Mapping[str, int]) -> str:
    if not counts:
        return "<p>None: what was compared is consistent.</p>"
    rows = [
        [
            f"<td class='{KINDS[kind][0]}'>{KINDS[kind][0]}</td>",
            _cell(kind),
            _cell(KINDS[kind][1]),
            _cell(count),
        ]
        for kind, count in counts.items()
    ]
    return _table(["severity", "kind", "meaning", "count"], rows)
