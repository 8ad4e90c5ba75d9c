"""The commit log: its files, the space that is reserved for it, and which of its files expire.
It may use the files and the layout of records.
It must not know of queues: they are made from the log, never the other way."""
