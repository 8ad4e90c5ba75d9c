"""The message store in RocketMQ's files: commit log, consume queues, index files, checkpoint, and the
broker's state files (org.apache.rocketmq.store).
It may use the formats and the protocol.
It must not know of brokers: neither roles, requests, nor settings of others.
Callers import its modules; this one imports nothing, so that the pure ones can be used without the others."""
