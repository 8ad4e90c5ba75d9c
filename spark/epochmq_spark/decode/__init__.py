"""Decodes the bytes of RocketMQ's files into columns, without Spark."""
