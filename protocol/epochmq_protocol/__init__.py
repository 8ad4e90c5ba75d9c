"""What two RocketMQ processes must agree on: bytes on the wire, bytes on disk, and the transport that carries
them."""
