"""What a process tells, and is told, over its local socket: by the admin sidecar, and by people on the
machine. The socket itself is `transport.local_socket`."""
