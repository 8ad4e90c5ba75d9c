"""What a broker answers at its local socket (`epochmq_protocol.admin`); the sidecar beside it is `admin`."""
