"""Measures which tests execute which lines, and caches the result until code or tests change."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coverage import CoverageData

from tools.mutants.checkout_copies import CheckoutCopy
from tools.mutants.coverage_plugin import RESULTS_VARIABLE
from tools.mutants.packages import CACHE, PACKAGES

MEASURE_TIMEOUT_S: Final = 7200
KEPT_MAX: Final = 40
"""Measurements in the cache; older ones are deleted."""


@dataclass(frozen=True)
class CoverageMap:
    """`lines`: path -> line -> numbers of tests; `tests`: their node ids; `seconds`: their durations while
    coverage was measured. It contains only tests that passed."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]
    failed: list[str]

    def chosen(
        self, path: str, first: int, last: int, importers: Callable[[], Container[str]] = frozenset
    ) -> list[int]:
        """Tests that execute one of these lines, fastest first. For lines that execute only at import: all
        tests that execute any line of the module, and those of the files that `importers` returns, which may
        only use its constants."""
        lines = self.lines.get(path, {})
        found = {one for line in range(first, last + 1) for one in lines.get(str(line), ())}
        if not found:
            imported = any(str(line) in lines for line in range(first, last + 1))
            if imported:
                found = {one for numbers in lines.values() for one in numbers}
                files = importers()
                found |= {one for one, test in enumerate(self.tests) if test.split("::")[0] in files}
        return sorted(found, key=lambda one: self.seconds[one])


def joined(maps: Sequence[CoverageMap]) -> CoverageMap:
    """One map of the tests of several."""
    tests: list[str] = []
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in maps:
        for path, numbers_of in one.lines.items():
            for line, numbers in numbers_of.items():
                lines[path][line] += [len(tests) + number for number in numbers]
        tests += one.tests
    seconds = [each for one in maps for each in one.seconds]
    return CoverageMap(tests, seconds, lines, [test for one in maps for test in one.failed])


def measured(copy: CheckoutCopy, folders: tuple[str, ...]) -> CoverageMap:
    """The map of these folders of tests, from the cache if code and tests are unchanged."""
    CACHE.mkdir(parents=True, exist_ok=True)
    name = f"coverage-{_digest(copy, folders)}.json"
    kept = CACHE / name
    if not kept.exists():
        print(f"measuring which lines {', '.join(folders)} execute …", flush=True)
        scratch = CACHE / f"{name}.{os.getpid()}"
        scratch.write_text(json.dumps(_measure(copy, folders)))
        scratch.rename(kept)
        for old in sorted(CACHE.glob("coverage-*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT_MAX]:
            old.unlink(missing_ok=True)
    return CoverageMap(**json.loads(kept.read_text()))


def _digest(copy: CheckoutCopy, folders: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr(folders).encode())
    roots = [copy.folder / name for name in (*folders, *(package.source for package in PACKAGES))]
    for path in sorted(path for root in roots for path in root.rglob("*.py")):
        digest.update(str(path.relative_to(copy.folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _measure(copy: CheckoutCopy, folders: tuple[str, ...]) -> dict[str, Any]:
    data, results, output = (copy.folder / f".mutants-{kind}" for kind in ("data", "results", "output"))
    settings = copy.folder / ".mutants-coveragerc"
    sources = "".join(f"\n    {package.source}/*" for package in PACKAGES)
    settings.write_text(f"[run]\ndata_file = {data}\ninclude ={sources}\n")
    command = ["-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p"]
    command += ["tools.mutants.coverage_plugin", "-p", "no:cacheprovider", "-m", "not soak", *folders]
    status = copy.run(
        command,
        timeout_s=MEASURE_TIMEOUT_S,
        output=output,
        compiled=True,
        extra={RESULTS_VARIABLE: str(results)},
    )
    if status not in (0, 1) or not data.exists():
        raise SystemExit(f"pytest of {folders} exited with {status}:\n{output.read_text()[-4000:]}")
    outcome = json.loads(results.read_text())
    tests = sorted(outcome["passed"])
    numbers = {test: number for number, test in enumerate(tests)}
    lines: dict[str, dict[str, list[int]]] = defaultdict(dict)
    found = CoverageData(str(data))
    found.read()
    for path in found.measured_files():
        relative = str(Path(path).relative_to(copy.folder))
        for line, contexts in found.contexts_by_lineno(path).items():
            lines[relative][str(line)] = sorted({numbers[one] for one in contexts if one in numbers})
    seconds = [round(outcome["passed"][test], 4) for test in tests]
    return {"tests": tests, "seconds": seconds, "lines": lines, "failed": outcome["failed"]}
