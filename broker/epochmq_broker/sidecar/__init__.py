"""The sidecar: an HTTP server for people, probes, Prometheus and the operator, beside a broker, controller or
nameserver. It calls that process over its admin socket, keeps no state, and imports nothing of the
process."""
