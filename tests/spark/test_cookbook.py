"""Runs the queries of docs/spark-cookbook.md on a store, and compares what they count with its messages."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.spark import damage, seeded_groups

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-cookbook.md"
KEY = "order-7"


def blocks() -> list[str]:
    """The code of the page: the session, then the queries."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.usefixtures("spark")
def test_every_query_of_the_cookbook_counts_the_messages_of_a_store(tmp_path: Path) -> None:
    store = seeded_groups.create_healthy_group(tmp_path / "healthy", 51)[0]
    messages = [one.message for one in damage.records(store)]
    session, *queries = blocks()
    assert len(queries) == 10
    names: dict[str, Any] = {}
    exec(session.replace('"/mnt/orders-0/store"', repr(str(store))), names)
    found = []
    for query in queries:
        exec(query, names)
        found.append([row.asDict() for row in names["result"].collect()])
    hours, keys, latency, largest, producers, tags, skew, history, lag, again = found

    topics = Counter(one.topic for one in messages)
    assert sum(row["messages"] for row in hours) == len(messages)
    assert {row["topic"]: row["worst"] for row in latency} == {
        topic: max(one.store_timestamp - one.born_timestamp for one in messages if one.topic == topic)
        for topic in topics
    }
    every_key = Counter(
        (one.topic, key) for one in messages for key in properties(one).get("KEYS", "").split() if key
    )
    assert {(row["topic"], row["key"]): row["messages"] for row in keys} == dict(every_key.most_common(100))
    sizes = sorted((record.size for record in damage.records(store)), reverse=True)
    assert [row["size"] for row in largest] == sizes[:20]
    assert sum(row["bytes"] for row in producers) == sum(sizes)
    assert {row["topic"]: row["messages"] for row in tags if row["tags"] == "paid"} == Counter(
        one.topic for one in messages if properties(one).get("TAGS") == "paid"
    )
    assert {row["topic"]: row["queues"] for row in skew} == dict.fromkeys(topics, 2)
    of_key = [one for one in messages if KEY in properties(one).get("KEYS", "").split()]
    assert [row["length"] for row in history] == [len(one.body) for one in of_key]
    table = json.loads((store / "config" / "consumerOffset.json").read_text())["offsetTable"]
    read = {name.split("@")[0]: sum(of_queue.values()) for name, of_queue in table.items()}
    assert {row["topic"]: row["lag"] for row in lag} == {topic: topics[topic] - read[topic] for topic in read}
    assert again == []


def properties(message: Any) -> dict[str, str]:
    from epochmq_protocol.message import parse_properties

    return parse_properties(message.properties)
