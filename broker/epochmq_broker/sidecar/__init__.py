"""The admin sidecar: HTTP for people, probes, Prometheus and the operator, beside every broker, controller
and nameserver, whom it asks over their local socket. It holds no state of theirs, and imports nothing of
them."""
