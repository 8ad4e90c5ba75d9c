"""The command `epochmq`: its verbs, and small clients for them."""
