"""The consume queues of all topics: plain ones with their extension, batch and light ones, their units in
memory, and their expiry.
It may use the files, the hashes of keys and the layout of records.
It must not read the log: who adds a unit knows the record."""
