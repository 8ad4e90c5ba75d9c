"""The index of message keys: the index files, and the backlog of messages that are not in them yet.
It may use the files and the layout of records.
It must not know of the log or of queues: it gets keys and offsets."""
