"""What a verb is about: a run on this machine, nameservers, or a namespace of a cluster."""

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
    """The part of a state directory's pods.json that matters here; read without the operator's model, which
    takes longer to load than a message takes to send."""

    pods: list[_Pod]


@dataclass(frozen=True, slots=True)
class NameserverTarget:
    """What was typed: a state directory, or addresses, or nothing, which is the state directory of `make
    run`."""

    state: Path | None
    nameserver: str | None
    broker_group: str | None

    def nameservers(self) -> list[str]:
        """The nameservers' addresses, host:port. UsageError when they cannot be known."""
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
            raise UsageError(f"{state} cannot be read: {error}") from None
        running = {
            pod.group: pod.nameservers
            for pod in pods
            if pod.phase != "Stopped" and pod.component == "broker" and pod.nameservers
        }
        groups = sorted(running)
        if not groups:
            what = "no broker group" if any(pod.phase != "Stopped" for pod in pods) else "nothing"
            raise UsageError(
                f"{what} runs in {state}; start something with `epochmq up -f FILE`, or name the run with "
                "--state DIR, or a nameserver with --nameserver HOST:PORT"
            )
        wanted = self.broker_group if self.broker_group is not None or len(groups) > 1 else groups[0]
        if wanted not in groups:
            problem = (
                "--broker-group is missing" if wanted is None else f"--broker-group {wanted} does not run"
            )
            raise UsageError(f"{problem}; in {state} run: {', '.join(groups)}")
        assert wanted is not None
        return running[wanted]


@dataclass(frozen=True, slots=True)
class KubernetesTarget:
    """A namespace of a Kubernetes cluster, as it was typed; what is None, the kubeconfig says."""

    namespace: str | None
    context: str | None
    kubeconfig: str | None

    @classmethod
    def of(
        cls, namespace: str | None, context: str | None, kubeconfig: str | None
    ) -> KubernetesTarget | None:
        """None when none of it was typed: this machine is meant."""
        typed = (namespace, context, kubeconfig)
        return None if typed == (None, None, None) else cls(*typed)


def _addresses(text: str) -> list[str]:
    addresses = [address.strip() for address in text.replace(",", ";").split(";") if address.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--nameserver {address}: expected HOST:PORT")
    if not addresses:
        raise UsageError("--nameserver: expected HOST:PORT")
    return addresses
