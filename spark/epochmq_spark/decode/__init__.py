"""Decodes the bytes of RocketMQ's files into columns, without Spark."""

from epochmq_spark.decode.code_cache import ensure_code_cache

ensure_code_cache()
