"""Sends special messages of a group without a master to other groups (RocketMQ's EscapeBridge, RIP-32)."""
