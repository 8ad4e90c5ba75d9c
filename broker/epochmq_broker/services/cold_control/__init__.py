"""Limits how much data outside the page cache a consumer group reads (RocketMQ's cold-data flow control)."""
