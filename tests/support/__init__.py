"""What the tests share: loopback addresses, child processes, clusters, a bare remoting call."""
