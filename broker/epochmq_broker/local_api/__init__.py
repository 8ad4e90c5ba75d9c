"""What a broker answers at its local socket (`epochmq_protocol.admin_api`); the sidecar beside it is
`admin`."""
