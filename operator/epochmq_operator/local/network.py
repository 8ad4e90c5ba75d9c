"""Allocates loopback addresses: a network `127.x.y.0/24` for each state directory, and an address in it for
each pod.

The network is derived from the directory's path, so that it stays the same from run to run. During a run a
socket that listens at `127.x.y.254:10900` reserves it: of two directories whose paths lead to the same
network, the later run takes the next network. Because every pod has an address of its own, all use RocketMQ's
usual ports."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

from epochmq_operator.local.errors import NetworkError
from epochmq_operator.pods import Pod

CLAIM_HOST = 254
CLAIM_PORT = 10900
PODS_MAX = CLAIM_HOST - 1
CANDIDATES_MAX = 64
_FIRST_OCTET = 128
"""Networks start at 127.128.0.0. Lower addresses are those that users type and other tools use."""


def candidates(directory: str) -> Iterator[str]:
    """The networks (`127.x.y`) for a state directory, in the order in which to try them."""
    for attempt in range(CANDIDATES_MAX):
        digest = hashlib.sha256(f"{directory}\0{attempt}".encode()).digest()
        yield f"127.{_FIRST_OCTET + digest[0] % 127}.{digest[1]}"


class NetworkClaim:
    """A network that is reserved until `release`."""

    def __init__(self, network: str, holder: socket.socket) -> None:
        self.network = network
        self._holder = holder

    def release(self) -> None:
        """Releases the network."""
        self._holder.close()


def claim_network(directory: str, previous: str | None = None) -> NetworkClaim:
    """Reserves a network for a state directory: the previous one if it is free, else the first free one.

    Raises NetworkError if none is free."""
    rejection: OSError | None = None
    for network in ([previous] if previous else []) + list(candidates(directory)):
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.bind((f"{network}.{CLAIM_HOST}", CLAIM_PORT))
            holder.listen(1)
        except OSError as error:
            holder.close()
            rejection = error
            if error.errno != errno.EADDRINUSE:
                break
            continue
        return NetworkClaim(network, holder)
    if rejection is not None and rejection.errno == errno.EADDRNOTAVAIL:
        raise NetworkError(
            "this machine has no loopback addresses besides 127.0.0.1; the local runtime needs 127.0.0.0/8, "
            "as Linux has it"
        )
    raise NetworkError(
        f"no loopback network is free: {CANDIDATES_MAX} were tried, the last one failed: {rejection}; "
        f"does a program listen on port {CLAIM_PORT} of all addresses?"
    )


def allocate(network: str, addresses: dict[str, str], pods: list[str]) -> dict[str, str]:
    """Allocates an address for every pod, by name. Addresses of the network in `addresses` are kept, also
    those of pods that no longer exist, because they may return. NetworkError if the network is full."""
    kept = {name: address for name, address in addresses.items() if address.startswith(f"{network}.")}
    free = (
        f"{network}.{host}" for host in range(1, PODS_MAX + 1) if f"{network}.{host}" not in kept.values()
    )
    for name in pods:
        if name not in kept:
            address = next(free, None)
            if address is None:
                raise NetworkError(
                    f"{name} has no address: all {PODS_MAX} of this network are taken; use another --state"
                )
            kept[name] = address
    return kept


def port_in_use(pod: Pod) -> str | None:
    """Why the pod cannot listen, in one sentence, or None. Call it while the pod does not run."""
    for port in pod.ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((pod.address, port.number))
                probe.listen(1)
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno == errno.EADDRINUSE:
                    owner = find_listener(pod.address, port.number)
                    reason = f"in use by {owner}" if owner else "in use by another program"
                return f"{pod.address}:{port.number} ({port.name}) is {reason}"
    return None


def find_listener(address: str, port: int) -> str | None:
    """The process that listens there or on that port of all addresses, as `pid 42 (java)`; None if
    unknown."""
    inodes = _listening_inodes(address, port)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    return f"pid {entry.name} ({(entry / 'comm').read_text().strip()})"
    return None


def _listening_inodes(address: str, port: int) -> set[str]:
    little_endian = ipaddress.IPv4Address(address).packed[::-1].hex().upper()
    mapped = "0000000000000000FFFF0000" + little_endian
    wanted = {f"{host}:{port:04X}" for host in (little_endian, mapped, "0" * 8, "0" * 32)}
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[1] in wanted:
                    found.add(fields[9])
    return found
