"""Access control: who sends a request (authentication), and whether the sender may (authorization)."""
