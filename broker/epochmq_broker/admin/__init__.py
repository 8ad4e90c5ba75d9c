"""The admin API of a broker (`epochmq_protocol.admin_api`) at its admin socket: state, metrics, control.
It may use membership and all below.
It must not know of requests, or of the sidecar that calls it."""
