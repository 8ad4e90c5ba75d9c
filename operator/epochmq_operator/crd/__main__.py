"""Writes the generated files, or lists those that are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from epochmq_operator.crd import all_definitions, to_yaml, whole_reference

ROOT = Path(__file__).resolve().parents[3]
DEFINITIONS = "charts/epochmq-operator/files/crds"
REFERENCE = "docs/resources.md"


def made() -> dict[str, str]:
    """The text of every generated file, by its path in the repository."""
    files = {f"{DEFINITIONS}/{one['metadata']['name']}.yaml": to_yaml([one]) for one in all_definitions()}
    return {**files, REFERENCE: "\n".join(whole_reference())}


def stale(root: Path) -> list[str]:
    """The files that differ from their generated text."""
    return [
        path
        for path, text in made().items()
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Returns 0, or 1 if `--check` finds a file out of date."""
    found = stale(ROOT)
    if "--check" in sys.argv[1:]:
        print("\n".join(f"{path} is out of date: run python -m epochmq_operator.crd" for path in found))
        return 1 if found else 0
    texts = made()
    for path in found:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(texts[path], encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
