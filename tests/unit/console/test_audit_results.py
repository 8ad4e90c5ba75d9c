"""The audits that the console lists, and the reports that it serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epochmq.console.audit_results import LISTED_MAX, AuditResults
from epochmq.console.web_app import make_console
from epochmq.exits import UsageError
from tests.unit.console.fake_facts import FakeFacts
from tests.unit.console.test_pages import Browser

SUMMARY = {"verdict": "damaged", "findingCounts": {"log.crc": 2, "log.gap": 1}, "replicas": [{}, {}, {}]}


def write(state: Path, name: str, summary: str | None, report: str | None = None) -> None:
    folder = state / "audits" / name
    folder.mkdir(parents=True)
    if summary is not None:
        (folder / "summary.json").write_text(summary)
    if report is not None:
        (folder / "report.html").write_text(report)


def test_audits_are_listed_with_their_verdicts_the_newest_first(tmp_path: Path) -> None:
    write(tmp_path, "20300101-120000", json.dumps(SUMMARY), "<p>")
    write(tmp_path, "20300102-120000", json.dumps({"verdict": None, "failure": "out of memory"}))
    write(tmp_path, "20300103-120000", None)
    write(tmp_path, "20300104-120000", "[")
    rows = AuditResults(tmp_path).listed()
    assert [(row["audit"][7], row["verdict"].split(" (")[0], row["hasReport"]) for row in rows] == [
        ("4", "unknown", False),
        ("3", "unfinished", False),
        ("2", "failed", False),
        ("1", "damaged", True),
    ]
    assert (rows[3]["replicas"], rows[3]["findings"], rows[3]["kinds"]) == (3, 3, ["log.crc", "log.gap"])


def test_only_the_newest_audits_are_listed(tmp_path: Path) -> None:
    for number in range(LISTED_MAX + 5):
        write(tmp_path, f"{number:08d}", None)
    rows = AuditResults(tmp_path).listed()
    assert (len(rows), rows[0]["audit"]) == (LISTED_MAX, f"{LISTED_MAX + 4:08d}")


def test_a_cluster_elsewhere_has_no_audits_here(tmp_path: Path) -> None:
    assert AuditResults(None).listed() == []
    assert AuditResults(tmp_path).listed() == []


@pytest.mark.parametrize("name", ["..", "../20300101", "x", "", "/etc", "a" * 200, "."])
def test_a_report_is_read_in_its_folder_only(tmp_path: Path, name: str) -> None:
    write(tmp_path, "20300101", None, "<p>")
    (tmp_path / "report.html").write_text("secret")
    (tmp_path / "audits" / "report.html").write_text("secret")
    with pytest.raises(UsageError, match="there is no report"):
        AuditResults(tmp_path).report(name)


def test_a_report_is_shown_and_may_do_nothing(tmp_path: Path) -> None:
    write(tmp_path, "20300101", json.dumps(SUMMARY), "<p style='color:red'>found</p>")
    facts = FakeFacts()
    facts.audits_of = tmp_path
    client = Browser(make_console(facts, None))
    assert "/audit-report?name=20300101" in client.get("/audits").text
    response = client.get("/audit-report", params={"name": "20300101"})
    assert response.text == "<p style='color:red'>found</p>"
    policy = response.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert client.get("/audit-report", params={"name": "x"}).status_code == 400
