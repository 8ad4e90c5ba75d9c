"""Tests the verdict and the report."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")

from html.parser import HTMLParser

from epochmq_spark import verdict
from epochmq_spark.findings import KINDS, finding, sentence
from epochmq_spark.report import page


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
    assert "<script" not in text
    assert "a&lt;b" in text
    assert text.count("<svg") == text.count("</svg>") == 3
    for word in ("src=", "href=", "@import", "url("):
        assert word not in text
    HTMLParser().feed(text)


def test_a_sentence_names_replica_offset_and_message() -> None:
    row = finding(
        "g", "r2", "log.diverged", epoch=3, start_offset=10, end_offset=50, topic="orders", queue_id=1,
        queue_offset=7, message_id="AB", key="k", detail="other body",
    )  # fmt: skip
    assert sentence(row) == (
        "error: log.diverged: a record differs from the other replicas' copies: replica r2, epoch 3, "
        "offset 10 to 50, queue orders/1, message 7, id AB, key k: other body"
    )
