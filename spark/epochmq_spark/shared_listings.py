"""Shares the driver's listing of each store with the tasks of an audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from epochmq_spark import drill_down

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession


@dataclass
class SharedListings:
    """The listings of one audit. That of a large store takes as many requests as it has directories, so only
    the driver lists it; the tasks get the listings with `share`."""

    run_id: str = field(default_factory=lambda: uuid4().hex)
    listings: Broadcast[drill_down.Listings] | None = None

    def share(self, spark: SparkSession, listings: drill_down.Listings) -> None:
        """Gives the tasks the listings. The driver, which reads a few records itself, uses them, too."""
        self.listings = spark.sparkContext.broadcast(listings)
        drill_down.start_task(self.run_id, lambda: listings)

    def start_task(self) -> None:
        """Prepares a task. Tasks of one audit in one process share what they cache."""
        listings = self.listings
        drill_down.start_task(self.run_id, dict if listings is None else lambda: listings.value)

    def release(self) -> None:
        """Frees the listings in the executors, and in the driver what it has cached."""
        if self.listings is not None:
            self.listings.unpersist()
        drill_down.clear_caches()
