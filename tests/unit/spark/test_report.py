"""Tests the verdict and the report."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")

from html.parser import HTMLParser

from epochmq_spark import verdict
from epochmq_spark.findings import KINDS, finding, sentence
from epochmq_spark.report import finding_list, page

LEGEND_MARKS = 4


@pytest.mark.parametrize(
    ("counts", "read", "expected", "code"),
    [
        ({}, 3, "healthy", 0),
        ({"message.duplicate": 3}, 3, "healthy", 0),
        ({"log.diverged": 1, "file.foreign": 1}, 3, "damaged", 4),
        ({"file.foreign": 1}, 3, "undecided", 5),
        ({}, 0, "undecided", 5),
        ({}, 1, "undecided", 5),
        ({}, 2, "healthy", 0),
        ({"log.diverged": 1}, 1, "damaged", 4),
    ],
)
def test_the_verdict_follows_from_the_worst_finding(
    counts: dict[str, int], read: int, expected: str, code: int
) -> None:
    assert (verdict.verdict_of(counts, read).value, verdict.verdict_of(counts, read).exit_code) == (
        expected,
        code,
    )


def replica(name: str, end: int | None) -> dict[str, Any]:
    return {
        "group": "a<b",
        "replica": name,
        "place": f"/mnt/{name}",
        "logStart": None if end is None else 0,
        "logEnd": end,
        "commonEnd": end,
        "leading": name == "r1",
        "epochs": [] if end is None else [[1, 0], [2, 700]],
        "epochTimes": [] if end is None else [[1, 1_700_000_000_000], [2, 1_700_000_900_000]],
        "lastTime": 1_700_001_000_000,
    }


def test_the_page_lists_all_findings_escapes_them_and_loads_nothing() -> None:
    found = [finding("a<b", "r1", kind, start_offset=400, topic="<script>", queue_id=1) for kind in KINDS]
    replicas = [replica("r1", 1000), replica("r2", 900), replica("r3", None)]
    summary = verdict.summary(dict.fromkeys(KINDS, 1), replicas, found, startedAt=0, seconds=1.5)
    text = page.render(summary)
    for kind in KINDS:
        assert kind in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "<script>" not in text.split("<script type='application/json'")[0]
    assert "a&lt;b" in text
    assert text.count("<svg") == text.count("</svg>") == 3 + LEGEND_MARKS
    for word in ("src=", "href=", "@import", "url("):
        assert word not in text
    HTMLParser().feed(text)


def test_the_data_of_the_page_are_the_findings() -> None:
    found = [finding("g", "r1", "log.diverged", start_offset=7, topic="</script>", queue_id=1, key="ü")]
    text = page.render(verdict.summary({"log.diverged": 1}, [replica("r1", 1000)], found, version="1.2"))
    data = re.search(r"id='finding-data'>(.*?)</script>", text, re.DOTALL)
    assert data is not None
    row = dict(zip(finding_list.COLUMNS, json.loads(data[1])[0], strict=True))
    assert (row["severity"], row["queue"], row["message"]) == ("error", "</script>/1", "ü")
    assert "EpochMQ 1.2." in text
    assert "confirm offset" in text


def test_headings_have_a_scope_and_severities_differ_without_colours() -> None:
    kinds = ["log.diverged", "more", "log.behind"]
    found = [finding("a<b", "r1", kind, start_offset=at) for at, kind in enumerate(kinds)]
    found = [row | {"start_offset": row["start_offset"] * 300} for row in found]
    text = page.render(verdict.summary(dict.fromkeys(kinds, 1), [replica("r1", 1000)], found))
    assert "<th>" not in text
    logs = text[text.index("<svg xmlns") : text.index("epochs over time")]
    assert len(set(re.findall(r"class='mark \w+' .*?stroke-dasharray='(.*?)'", logs))) == 3
    for colour in ("#c62f3b", "var(--damaged)"):
        assert colour in page.STYLE


def test_ten_thousand_findings_are_few_elements() -> None:
    found = [
        finding("a<b", "r1", "log.diverged", start_offset=number % 1000, detail=f"finding {number}")
        for number in range(10_000)
    ]
    replicas = [replica("r1", 1000), replica("r2", 900)]
    text = page.render(verdict.summary({"log.diverged": 10_000}, replicas, found[:1000]), found)
    assert text.count("finding 9999") == 1
    assert text.count("</") < 4000  # elements that a browser creates before it shows the page
    assert len(text) < 2_000_000


def test_a_sentence_names_replica_offset_and_message() -> None:
    row = finding(
        "g", "r2", "log.diverged", epoch=3, start_offset=10, end_offset=50, topic="orders", queue_id=1,
        queue_offset=7, message_id="AB", key="k", detail="other body",
    )  # fmt: skip
    assert sentence(row) == (
        "error: log.diverged: a record differs from the other replicas' copies: replica r2, epoch 3, "
        "offset 10 to 50, queue orders/1, message 7, id AB, key k: other body"
    )
