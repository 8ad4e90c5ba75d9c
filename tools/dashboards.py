"""Writes the Grafana dashboards of the chart, or lists those that are out of date (`--check`). A dashboard is
a list of rows of panels; the rest of its JSON follows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.dashboard_panels import DASHBOARDS, Dashboard, Variable

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = "charts/epochmq-operator/files/dashboards"
WIDTH, HEIGHT = 24, 8
"""The width of Grafana's grid, and the height of a row of panels."""


def document(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": f"epochmq-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["epochmq"],
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), *map(_variable, dashboard.variables)]},
        "panels": list(_panels(dashboard)),
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(one: Variable) -> dict[str, Any]:
    query = f"label_values({one.metric}, {one.label})"
    return {
        "name": one.name,
        "label": one.name.capitalize(),
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": one.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number = 0
    for row, panels in enumerate(dashboard.rows):
        width = WIDTH // len(panels)
        for column, panel in enumerate(panels):
            number += 1
            yield {
                "id": number,
                "title": panel.title,
                **({"description": panel.text} if panel.text else {}),
                "type": panel.kind,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"x": column * width, "y": row * HEIGHT, "w": width, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
                    for index, (expression, legend) in enumerate(panel.queries)
                ],
            }


def made() -> dict[str, str]:
    """The text of every dashboard, by its path in the repository."""
    return {f"{DIRECTORY}/{one.name}.json": json.dumps(document(one), indent=1) + "\n" for one in DASHBOARDS}


def stale() -> list[str]:
    """The files that differ from their generated text."""
    return [
        path
        for path, text in made().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Returns 0, or 1 if `--check` finds a file out of date."""
    found = stale()
    if "--check" in sys.argv[1:]:
        print("\n".join(f"{path} is out of date: run python -m tools.dashboards" for path in found))
        return 1 if found else 0
    for path in found:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(made()[path], encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
