"""Defines the targets of verbs: nameservers, by their addresses or through a state directory, or a namespace
on Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from epochmq.exits import UsageError

STATE_DEFAULT = Path(".epochmq")


class _Pod(msgspec.Struct):
    pod: str
    group: str
    component: str
    phase: str
    nameservers: list[str] = []


class _PodsFile(msgspec.Struct):
    """The part of a state directory's pods.json that is needed here. The operator's model is not used,
    because importing it takes longer than sending a message."""

    pods: list[_Pod]


@dataclass(frozen=True, slots=True)
class NameserverTarget:
    """The options that select nameservers: a state directory, or addresses. The default is the
    state directory `.epochmq`. `nameserver` is one or more addresses, separated by `;` or `,`."""

    state: Path | None
    nameserver: str | None
    broker_group: str | None

    def nameservers(self) -> list[str]:
        """The addresses of the nameservers, host:port. Raises UsageError if they cannot be determined."""
        if self.nameserver is not None:
            if self.state is not None:
                raise UsageError("give --state or --nameserver, not both")
            return _addresses(self.nameserver)
        state = STATE_DEFAULT if self.state is None else self.state
        try:
            pods = msgspec.json.decode((state / "pods.json").read_bytes(), type=_PodsFile).pods
        except FileNotFoundError:
            pods = []
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"state directory {state}: pods.json cannot be read: {error}") from None
        nameservers_of = {
            pod.group: pod.nameservers
            for pod in pods
            if pod.phase != "Stopped" and pod.component == "broker" and pod.nameservers
        }
        groups = sorted(nameservers_of)
        if not groups:
            absent = "no broker group" if any(pod.phase != "Stopped" for pod in pods) else "nothing"
            raise UsageError(
                f"{absent} runs in {state}; start something with `epochmq up -f FILE`, or give another "
                "state directory with --state DIR, or a nameserver with --nameserver HOST:PORT"
            )
        wanted = self.broker_group if self.broker_group is not None or len(groups) > 1 else groups[0]
        if wanted not in groups:
            problem = (
                "--broker-group is missing" if wanted is None else f"--broker-group {wanted} does not run"
            )
            raise UsageError(f"{problem}; in {state} run: {', '.join(groups)}")
        assert wanted is not None
        return nameservers_of[wanted]


@dataclass(frozen=True, slots=True)
class KubernetesTarget:
    """The options that select a namespace on Kubernetes. `namespace` and `context`: None means the
    kubeconfig's value. `kubeconfig`: None means the file that kubectl would use."""

    namespace: str | None
    context: str | None
    kubeconfig: str | None

    @classmethod
    def from_options(
        cls, namespace: str | None, context: str | None, kubeconfig: str | None
    ) -> KubernetesTarget | None:
        """None if no option is given: then the verb applies to this machine."""
        options = (namespace, context, kubeconfig)
        return None if options == (None, None, None) else cls(*options)


def _addresses(text: str) -> list[str]:
    addresses = [address.strip() for address in text.replace(",", ";").split(";") if address.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--nameserver {address}: expected HOST:PORT")
    if not addresses:
        raise UsageError("--nameserver: expected HOST:PORT")
    return addresses
