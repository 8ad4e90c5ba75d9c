"""Tests that the options of the data sources are checked before anything is read."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.sources.index import IndexReader

SIZES = ("partitionBytes", "taskBytes", "indexSlots")


@pytest.mark.parametrize("value", ["0", "-1", "64m", "1.5", ""])
@pytest.mark.parametrize("option", SIZES)
def test_an_invalid_size_is_rejected_with_the_name_of_its_option(option: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"option {option}: '{value}', expected a whole number, at least 1"):
        IndexReader([], {option: value})


def test_sizes_are_optional() -> None:
    assert len(IndexReader([], {}).partitions()) == 1
    assert len(IndexReader([], dict.fromkeys(SIZES, "4096")).partitions()) == 1
