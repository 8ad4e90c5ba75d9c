"""Defines the targets of verbs: nameservers, by their addresses, through a profile or through a state
directory, or a namespace on Kubernetes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from epochmq.exits import UsageError
from epochmq.profile import Profile, chosen_profile

if TYPE_CHECKING:
    from epochmq_protocol.signatures import SessionCredentials
    from epochmq_protocol.transport.tls import TlsSettings

STATE_DEFAULT = Path(".epochmq")
NAMESERVER_VARIABLE: Final = "EPOCHMQ_NAMESERVER"


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
    """The options that select nameservers: addresses, a state directory, or a profile. Without an option the
    environment's `EPOCHMQ_NAMESERVER` counts, then the current profile, then the state directory `.epochmq`.
    `nameserver` is one or more addresses, separated by `;` or `,`."""

    state: Path | None
    nameserver: str | None
    broker_group: str | None
    profile: str | None = None

    def nameservers(self) -> list[str]:
        """The addresses of the nameservers, host:port. Raises UsageError if they cannot be determined."""
        if self.nameserver is not None:
            if self.state is not None:
                raise UsageError("give --state or --nameserver, not both")
            return _addresses("--nameserver", self.nameserver)
        if self.state is not None:
            return self._nameservers_of_run(self.state)
        named = os.environ.get(NAMESERVER_VARIABLE)
        if named and self.profile is None:
            return _addresses(NAMESERVER_VARIABLE, named)
        chosen = self._profile()
        if chosen is not None:
            name, profile = chosen
            if profile.nameserver is not None:
                return _addresses(f"profile {name}: nameserver", profile.nameserver)
            if profile.state is not None:
                return self._nameservers_of_run(Path(profile.state).expanduser())
        return self._nameservers_of_run(STATE_DEFAULT)

    def run_directory(self) -> Path | None:
        """The state directory from which the nameservers come; None if they come from elsewhere."""
        if self.nameserver is not None:
            return None
        if self.state is not None:
            return self.state
        if os.environ.get(NAMESERVER_VARIABLE) and self.profile is None:
            return None
        chosen = self._profile()
        if chosen is None or (chosen[1].nameserver is None and chosen[1].state is None):
            return STATE_DEFAULT
        return None if chosen[1].nameserver or not chosen[1].state else Path(chosen[1].state).expanduser()

    def credentials(self) -> SessionCredentials | None:
        """The user who signs the requests: that of the environment, else that of the profile. None: requests
        are not signed. Raises UsageError for half a user."""
        from epochmq.client.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, environment_credentials
        from epochmq_protocol.signatures import SessionCredentials

        found = environment_credentials()
        if found is not None:
            return found
        for given, other in (
            (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE),
            (SECRET_KEY_VARIABLE, ACCESS_KEY_VARIABLE),
        ):
            if os.environ.get(given):
                raise UsageError(f"{given} is set, but not {other}: set both, or neither")
        chosen = self._profile()
        if chosen is None:
            return None
        name, profile = chosen
        secret = profile.secret(name)
        if bool(profile.access_key) != bool(secret):
            raise UsageError(f"profile {name}: give accessKey and secretKey (or secretKeyFile), or neither")
        return SessionCredentials(profile.access_key, secret) if profile.access_key and secret else None

    def tls(self) -> TlsSettings | None:
        """The TLS of all connections; None: plain ones. Raises UsageError for a file without certificates."""
        chosen = self._profile()
        if chosen is None or not chosen[1].tls:
            return None
        import ssl

        from epochmq_protocol.transport.tls import TlsSettings

        name, profile = chosen
        if profile.ca_file is None:
            return TlsSettings(auth_server=False)
        path = Path(profile.ca_file).expanduser()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            reason = "it has none" if isinstance(error, ssl.SSLError) else error.strerror
            raise UsageError(f"profile {name}: caFile {path}: expected PEM certificates ({reason})") from None
        return TlsSettings(trust_path=str(path), auth_server=True)

    def _profile(self) -> tuple[str, Profile] | None:
        """The profile in force: none if an option or the environment names the cluster, unless it is named,
        too."""
        if self.profile is None and (
            self.nameserver is not None or self.state is not None or os.environ.get(NAMESERVER_VARIABLE)
        ):
            return None
        return chosen_profile(self.profile)

    def _nameservers_of_run(self, state: Path) -> list[str]:
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
                "state directory with --state DIR, or a nameserver with --nameserver HOST:PORT or with "
                f"{NAMESERVER_VARIABLE}"
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


def _addresses(name: str, text: str) -> list[str]:
    addresses = [address.strip() for address in text.replace(",", ";").split(";") if address.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"{name} {address}: expected HOST:PORT")
    if not addresses:
        raise UsageError(f"{name}: expected HOST:PORT")
    return addresses
