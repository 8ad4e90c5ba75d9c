"""Network namespaces joined by a hub, and links between them that lose packets one way or both, or are
slow.

Every process has a namespace of its own and one link to the hub, a namespace that routes between the others
and reaches nothing else.
A link is cut by a rule of the hub ("from A to B: blackhole"), which drops packets without telling the sender
and needs neither netfilter nor netem. A namespace exists as long as this process holds it open, so nothing is
left behind, however a test ends.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

_CLONE_NEWNET = 0x40000000
_CUT_RULES = 1000
"""The priority of the rules that cut links: before the routes. All of them can be removed by it."""
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """What this machine lacks for namespaces, or None."""
    if os.geteuid() != 0:
        return "root, to make network namespaces"
    tools = [tool for tool in ("ip", "tc", "nsenter", "sysctl") if shutil.which(tool) is None]
    if tools:
        return f"the programs {', '.join(tools)} (iproute2, util-linux, procps)"
    try:
        os.close(_new_namespace())
    except OSError as error:
        return f"the right to make network namespaces ({error})"
    return None


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _new_namespace() -> int:
    """A descriptor that holds a new network namespace. A thread makes it, because creating one means entering
    it."""
    found: list[int | OSError] = []

    def make() -> None:
        try:
            _checked(_libc.unshare(_CLONE_NEWNET))
            found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    (one,) = found
    if isinstance(one, OSError):
        raise one
    return one


class Network:
    """`with Network(["a", "b"]) as network:` two namespaces; `network.address["a"]` is the address in a."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.address = {name: f"10.73.{number}.2" for number, name in enumerate(self.names, 1)}
        self._namespaces = {name: _new_namespace() for name in self.names}
        self._hub = _new_namespace()
        self._cuts: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        self._ip("link set lo up")
        self._run(self._hub, ["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])
        for number, name in enumerate(self.names, 1):
            space = self._namespaces[name]
            self._ip(
                f"link add link{number} type veth peer name eth0 netns {_path(space)}",
                f"address add 10.73.{number}.1/30 dev link{number}",
                f"link set link{number} up",
            )
            self._ip(
                "link set lo up",
                f"address add 10.73.{number}.2/30 dev eth0",
                "link set eth0 up",
                f"route add default via 10.73.{number}.1",
                space=space,
            )

    def close(self) -> None:
        """Closes the namespaces; each ends with the last process in it."""
        for space in (*self._namespaces.values(), self._hub):
            os.close(space)

    # Entering a namespace -----------------------------------------------------------------------------------

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in that namespace."""
        return ["nsenter", f"--net={_path(self._namespaces[name])}", *command]

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Moves the calling thread, and the threads that it starts, into that namespace; their sockets stay
        there."""
        back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_libc.setns(self._namespaces[name], _CLONE_NEWNET))
            try:
                yield
            finally:
                _checked(_libc.setns(back, _CLONE_NEWNET))
        finally:
            os.close(back)

    # Links --------------------------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """Drops everything from `sender` to `receiver`; the other direction does not change."""
        self._cuts[sender, receiver] += 1
        if self._cuts[sender, receiver] == 1:
            self._ip(f"rule add {self._between(sender, receiver)}")

    def mend(self, sender: str, receiver: str) -> None:
        """Reverses one `cut`; a link that was cut twice needs two calls."""
        self._cuts[sender, receiver] -= 1
        if self._cuts[sender, receiver] == 0:
            self._ip(f"rule del {self._between(sender, receiver)}")

    def _between(self, sender: str, receiver: str) -> str:
        return f"from {self.address[sender]} to {self.address[receiver]} priority {_CUT_RULES} blackhole"

    def slow(self, name: str, kbit: int, queue_ms: int = 400) -> None:
        """Limits both directions of a namespace's link to `kbit` kilobits a second; packets that wait longer
        than `queue_ms` are dropped."""
        shape = ["root", "tbf", "rate", f"{kbit}kbit", "burst", "4000", "latency", f"{queue_ms}ms"]
        self._run(self._hub, ["tc", "qdisc", "replace", "dev", self._link(name), *shape])
        self._run(self._namespaces[name], ["tc", "qdisc", "replace", "dev", "eth0", *shape])

    def fast(self, name: str) -> None:
        """Reverses `slow`."""
        self._run(self._hub, ["tc", "qdisc", "del", "dev", self._link(name), "root"])
        self._run(self._namespaces[name], ["tc", "qdisc", "del", "dev", "eth0", "root"])

    def _link(self, name: str) -> str:
        return f"link{self.names.index(name) + 1}"

    def _ip(self, *lines: str, space: int | None = None) -> None:
        self._run(self._hub if space is None else space, ["ip", "-batch", "-"], "\n".join(lines))

    def _run(self, space: int, command: Sequence[str], stdin: str = "") -> None:
        done = subprocess.run(
            ["nsenter", f"--net={_path(space)}", *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(f"{' '.join(command)}: {stdin}: {done.stderr.strip()}")


def _path(space: int) -> str:
    """A path by which other processes can open the namespace."""
    return f"/proc/{os.getpid()}/fd/{space}"
