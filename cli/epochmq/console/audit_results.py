"""Reads the results of audits that `epochmq audit` has left in a state directory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from epochmq.exits import UsageError
from epochmq.verbs.output import Column

AUDITS = "audits"
SUMMARY_FILE, REPORT_FILE = "summary.json", "report.html"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LISTED_MAX = 100
SUMMARY_BYTES_MAX = 32 * 1024 * 1024
REPORT_BYTES_MAX = 64 * 1024 * 1024
COLUMNS = (
    Column("AUDIT", "audit"),
    Column("STATE", "verdict"),
    Column("FINISHED", "finished", is_time=True),
    Column("REPLICAS", "replicas"),
    Column("FINDINGS", "findings"),
    Column("KINDS", "kinds"),
)


@dataclass(frozen=True, slots=True)
class AuditResults:
    """The audits of a state directory; None: the cluster has none, because it does not run from one."""

    state: Path | None

    def listed(self) -> list[dict[str, Any]]:
        """A row of `COLUMNS` for each of the newest audits, the newest first."""
        folder = None if self.state is None else self.state / AUDITS
        if folder is None or not folder.is_dir():
            return []
        found = [one for one in folder.iterdir() if NAME.fullmatch(one.name) and one.is_dir()]
        return [_row(one) for one in sorted(found, reverse=True)[:LISTED_MAX]]

    def report(self, name: str) -> bytes:
        """The report of an audit, as HTML. Raises UsageError if there is none."""
        path = None if self.state is None else self.state / AUDITS / name / REPORT_FILE
        if path is None or not NAME.fullmatch(name) or not path.is_file():
            raise UsageError(f"audit {name:.100}: there is no report of this name")
        if path.stat().st_size > REPORT_BYTES_MAX:
            raise UsageError(f"audit {name}: the report is too large for a page; open {path}")
        return path.read_bytes()


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"audit": folder.name, "hasReport": (folder / REPORT_FILE).is_file()}
    path = folder / SUMMARY_FILE
    try:
        if path.stat().st_size > SUMMARY_BYTES_MAX:
            return row | {"verdict": "unknown (the summary is too large)"}
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        counts, replicas = found.get("findingCounts") or {}, found.get("replicas") or []
        return row | {
            "verdict": found.get("verdict") or f"failed ({found.get('failure') or 'no verdict'})",
            "finished": int(path.stat().st_mtime * 1000),
            "replicas": len(replicas),
            "findings": sum(counts.values()),
            "kinds": sorted(counts),
        }
    except FileNotFoundError:
        return row | {"verdict": "unfinished"}
    except (OSError, msgspec.DecodeError, AttributeError, TypeError) as error:
        return row | {"verdict": f"unknown ({error})"}
