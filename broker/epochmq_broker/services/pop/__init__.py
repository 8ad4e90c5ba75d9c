"""Serves consumers in POP mode: the broker hands out messages for a while, and hands them out again unless
they are acknowledged in time (RocketMQ's RIP-19)."""
