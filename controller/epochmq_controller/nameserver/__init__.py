"""The nameserver: which broker names exist, which addresses they have, which topics they carry."""
