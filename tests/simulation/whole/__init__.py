"""Runs whole processes of EpochMQ in one thread, in virtual time, driven by one seed.

Brokers, controllers and nameservers run as they are, from the `serve` of their process down: the same
services, connections, clients, heartbeats, stores and recovery. Only what the kernel provides is replaced:
time and scheduling (`loop`), sockets (`sockets`, `network`), worker threads (`threads`), randomness
(`kernel`), and what a power loss leaves of a directory (`files`). The replacement happens in a process of
its own for each seed (`isolation`), so nothing has to be put back.
"""
