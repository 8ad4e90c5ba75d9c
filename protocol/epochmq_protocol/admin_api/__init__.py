"""Defines the operations of a process's admin socket, which the sidecar and `epochmq admin-call` use. The
socket itself is in `transport.admin_socket`."""
