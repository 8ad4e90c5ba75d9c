"""Serves the requests of clients, brokers and administrators, one module per family of request codes."""
