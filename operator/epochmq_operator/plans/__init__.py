"""What the operator does next, decided from what it sees. Every module here is pure."""
