"""Selects messages by SQL92 expressions over their properties, with what RocketMQ stores for that."""
