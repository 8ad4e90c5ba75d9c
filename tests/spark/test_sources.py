"""Tests the data sources in Spark: columns, schemas and errors, on healthy and on damaged stores."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from pyspark.sql import functions as f

from epochmq_spark.sources import register
from tests.spark import damage, damage_kit, seeded_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A group of which one replica has damaged records."""
    paths = seeded_groups.create_healthy_group(tmp_path_factory.mktemp("sources") / "group", 61)
    rng = random.Random(7)
    for record in rng.sample(damage.records(paths[1]), 5):
        damage_kit.flip_bit(record.path, record.at + rng.randrange(record.size), rng)
    return paths


def load(spark: SparkSession, stores: list[Path], **options: str) -> DataFrame:
    register(spark)
    reader = spark.read.format("epochmq.commitlog").options(partitionBytes="4000", **options)
    return reader.load([str(path) for path in stores])


def test_few_columns_have_the_values_of_a_read_of_all(spark: SparkSession, stores: list[Path]) -> None:
    whole = load(spark, stores)
    total = whole.count()
    assert total > len(damage.records(stores[0])) * 2
    order = ["replica", "physical_offset"]
    for columns in ("replica,physical_offset,store_time,keys", "uniq_key,physical_offset,properties,replica"):
        few = load(spark, stores, columns=columns)
        assert few.count() == total
        names = columns.split(",")
        assert few.columns == names
        assert few.orderBy(*order).collect() == whole.select(*names).orderBy(*order).collect()
    stated = spark.read.schema("body BINARY, body_size INT").format("epochmq.commitlog")
    messages = stated.load(str(stores[0])).where("body_size is not null")
    assert (
        messages.count()
        == messages.where("length(body) = body_size").count()
        == len(damage.records(stores[0]))
    )
    text = load(spark, stores[:1], columns="properties_text,uniq_key").where("uniq_key is not null")
    parsed = text.where("str_to_map(properties_text, '\\u0002', '\\u0001')['UNIQ_KEY'] = uniq_key")
    assert parsed.count() == text.count() == len(damage.records(stores[0]))


def test_group_and_replica_are_in_every_row(spark: SparkSession, stores: list[Path]) -> None:
    found = load(spark, stores).select("group", "replica").distinct().collect()
    assert {tuple(row) for row in found} == {(seeded_groups.NAME, str(path)) for path in stores}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"bodyy": "true"}, "option bodyy: unknown, expected one of"),
        ({"body": "yes"}, "option body: 'yes', expected true or false"),
        ({"columns": "topics"}, "option columns: 'topics' in 'topics' is no column"),
    ],
)
def test_wrong_options_fail_at_load(
    spark: SparkSession, stores: list[Path], options: dict[str, str], error: str
) -> None:
    with pytest.raises(Exception, match=error):
        load(spark, stores, **options)


def test_a_stated_schema_of_other_columns_fails(spark: SparkSession, stores: list[Path]) -> None:
    register(spark)
    stated = spark.read.schema("topic STRING, age INT").format("epochmq.commitlog").load(str(stores[0]))
    with pytest.raises(Exception, match="schema: the source has no column 'age', expected some of"):
        stated.count()


def test_filters_find_what_a_read_of_the_log_finds(spark: SparkSession, stores: list[Path]) -> None:
    table = {topic: {"readQueueNums": 2, "writeQueueNums": 2} for topic in seeded_groups.TOPICS}
    for store in stores:
        (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    plain = load(spark, stores)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    ((low, high),) = plain.agg(f.min("store_time"), f.max("store_time")).collect()
    middle = low + (high - low) / 2
    order = ["replica", "physical_offset"]
    for condition in (
        f.col("topic") == "orders",
        f.col("topic").isin("orders", "none"),
        (f.col("topic") == "payments") & (f.col("queue_id") == 1) & (f.col("physical_offset") > 5000),
        (f.col("store_time") >= middle) & f.col("replica").isin(str(stores[0]), str(stores[1])),
        (f.col("topic") == "orders") | (f.col("queue_id") == 0),
        f.col("topic").isNull(),
    ):
        expected = plain.where(condition).orderBy(*order).collect()
        assert expected
        pushing = load(spark, stores, pushFilters="true")
        assert pushing.where(condition).orderBy(*order).collect() == expected
    assert load(spark, stores, pushFilters="true").where("topic = 'none'").count() == 0


def test_the_option_topics_finds_what_a_filter_finds(spark: SparkSession, stores: list[Path]) -> None:
    plain, order = load(spark, stores), ["replica", "physical_offset"]
    for topics in ("orders", "payments,none", "orders, payments"):
        names = [name.strip() for name in topics.split(",")]
        expected = plain.where(f.col("topic").isin(names)).orderBy(*order).collect()
        found = load(spark, stores, topics=topics)
        assert expected
        assert found.orderBy(*order).collect() == expected
        assert found.where("queue_id = 1").count() == sum(row["queue_id"] == 1 for row in expected)
        assert found.count() == len(expected)
