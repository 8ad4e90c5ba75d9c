"""Serves the admin API of a broker (`epochmq_protocol.admin_api`) at its admin socket. The sidecar beside the
broker is `sidecar`."""
