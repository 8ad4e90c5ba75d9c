"""From bytes to columns: what stands in RocketMQ's files, without Spark."""
