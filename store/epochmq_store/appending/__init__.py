"""The ways of a record into log, queues and index: messages of clients, and bytes of a master's log.
It may use the log, the queues and the index.
It must not know who sends, or when bytes become durable."""
