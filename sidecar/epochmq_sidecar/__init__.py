"""The admin sidecar: an HTTP server for people, probes, Prometheus and the operator beside a broker,
controller or nameserver, whose admin socket it calls.
It may use the protocol.
It must not know of the process beyond the admin API, and keeps no state."""
