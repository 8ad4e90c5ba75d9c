"""The layouts of RocketMQ's files, each once: its fields, encoder and decoder, and the class that it mirrors.
Pure; it may use the protocol, which defines what processes also exchange (records, properties, epoch
entries).
It must not know who reads or writes a file, or where the file is."""
