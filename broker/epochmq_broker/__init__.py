"""The broker: store, request processors, consumer groups, replication."""
