"""The Spark data sources: `register(spark)`, then `spark.read.format("epochmq.commitlog")` and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the data sources in a session."""
    from epochmq_spark.sources.commitlog import CommitLogSource
    from epochmq_spark.sources.consumequeue import ConsumeQueueSource
    from epochmq_spark.sources.epochs import EpochsSource
    from epochmq_spark.sources.extension import QueueExtensionSource
    from epochmq_spark.sources.index import IndexSource
    from epochmq_spark.sources.offsets import OffsetsSource
    from epochmq_spark.sources.state import StateSource
    from epochmq_spark.sources.summary import SummarySource
    from epochmq_spark.sources.timer import TimerLogSource, TimerWheelSource

    for source in (
        EpochsSource,
        CommitLogSource,
        ConsumeQueueSource,
        IndexSource,
        OffsetsSource,
        QueueExtensionSource,
        StateSource,
        SummarySource,
        TimerLogSource,
        TimerWheelSource,
    ):
        spark.dataSource.register(source)
