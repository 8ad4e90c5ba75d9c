"""Writes the outcomes of the mutants as JSON and as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tools.mutants.catalogue import Mutant
from tools.mutants.mutant_tester import KILLED_STAGES, MutantOutcome

GOAL: Final = 0.9
EQUIVALENT: Final = Path(__file__).resolve().parent / "equivalent.json"
Results = list[tuple[Mutant, MutantOutcome]]


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """(path, function, before, after) -> why the change has no observable effect."""
    rows = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {(row["path"], row["function"], row["before"], row["after"]): row["reason"] for row in rows}


def reason(mutant: Mutant, known: dict[tuple[str, str, str, str], str]) -> str | None:
    """The reason why this mutant is equivalent; None if it is not listed."""
    return known.get((mutant.path, mutant.function, mutant.before, mutant.after))


def summary(results: Results) -> dict[str, dict[str, Any]]:
    """Counts by package, `all` last. `killed_share` leaves equivalent mutants out."""
    known = equivalents()
    counts: dict[str, Counter[str]] = {}
    for mutant, outcome in results:
        listed = outcome.stage == "survived" and reason(mutant, known) is not None
        stage = "equivalent" if listed else outcome.stage
        for package in (mutant.package, "all"):
            counts.setdefault(package, Counter())[stage] += 1
    rows: dict[str, dict[str, Any]] = {}
    for package in sorted(counts, key=lambda name: (name == "all", name)):
        count = counts[package]
        killed = sum(count[stage] for stage in KILLED_STAGES)
        judged = killed + count["survived"]
        rows[package] = {
            "mutants": count.total(),
            **{stage: count[stage] for stage in (*KILLED_STAGES, "survived", "equivalent")},
            "killed_share": round(killed / judged, 4) if judged else None,
            "unit_share": round(count["unit"] / judged, 4) if judged else None,
        }
    return rows


def _table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---", *["--:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _code(text: str) -> str:
    return "``" + text.replace("|", "\\|") + "``" if text else "–"


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The summary as a table."""
    head = ["package", "mutants", "its unit tests", "further tests", "processes", "survived", "equivalent"]
    lines = []
    for package, row in rows.items():
        numbers = [row[key] for key in ("mutants", *KILLED_STAGES, "survived", "equivalent")]
        shares = [row["unit_share"], row["killed_share"]]
        lines.append([package, *map(str, numbers), *("–" if one is None else f"{one:.1%}" for one in shares)])
    return _table([*head, "killed by its unit tests", "killed"], lines)


def _survivors(results: Results) -> str:
    known = equivalents()
    lines = [
        f"- `{mutant.path}:{mutant.line}` {mutant.function}: {_code(mutant.before)} → {_code(mutant.after)}"
        f" ({mutant.operator}; {outcome.tests} tests execute the line)"
        for mutant, outcome in sorted(results, key=lambda pair: (pair[0].path, pair[0].line))
        if outcome.stage == "survived" and reason(mutant, known) is None
    ]
    return "\n".join(lines) or "None."


def _equivalent(results: Results) -> str:
    known = equivalents()
    lines = [
        f"- `{mutant.path}:{mutant.line}` {_code(mutant.before)} → {_code(mutant.after)}: {why}"
        for mutant, outcome in results
        if outcome.stage == "survived" and (why := reason(mutant, known)) is not None
    ]
    return "\n".join(lines) or "None."


def write(folder: Path, data: dict[str, Any], results: Results) -> tuple[Path, Path]:
    """Writes `mutants-DATE.json` and `mutants-DATE.md`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"mutants-{data['date'][:10]}"
    as_json, as_markdown = folder / f"{stem}.json", folder / f"{stem}.md"
    rows = summary(results)
    everything = {
        **data,
        "summary": rows,
        "mutants": [{**mutant.as_dict(), "outcome": vars(outcome)} for mutant, outcome in results],
    }
    as_json.write_text(json.dumps(everything, indent=1) + "\n")
    parts = [
        f"# Mutants that the tests detect, {data['date']}",
        f"`{data['command']}`: {len(results)} of {data['count']} mutants drawn with seed {data['seed']} from"
        f" {data['places']:,} places in these packages. Each has one operator, number, condition or call"
        " changed (by cosmic-ray, and by one operator of this tool that removes a call). A mutant is first"
        " tested with the unit tests of its package that execute the changed line, then with"
        f" {data['further']}. A time-out counts as a detection. The goal: {GOAL:.0%} of the mutants that are"
        " not equivalent.",
        table(rows),
        "## Survivors",
        _survivors(results),
        "## Equivalent mutants",
        _equivalent(results),
    ]
    as_markdown.write_text("\n\n".join(parts) + "\n")
    return as_markdown, as_json
