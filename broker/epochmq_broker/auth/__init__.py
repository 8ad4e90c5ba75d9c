"""The access control: who sends a request (authentication), and whether the sender may (authorization).
It may use the store's state files and the protocol.
It must not know which requests a broker serves, or who calls it."""
