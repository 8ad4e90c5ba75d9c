"""Defines the formats that RocketMQ processes share, on the wire and on disk, and the transport for
remoting."""
