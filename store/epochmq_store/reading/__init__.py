"""Gets by queue offset, by time and by key, with or without an expression.
It may use the log, the queues and the index.
It must not change any of them."""
