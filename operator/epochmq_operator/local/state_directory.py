"""Reads and writes the state directory: everything that a run keeps on disk.

    lock              held by the supervisor for as long as it lives
    apply.lock        held by `up` and `down`, which so exclude each other
    supervisor.json   which process the supervisor is
    resources.json    what is to run: the validated documents
    options.json      how it is to run: whether pods have admin sidecars
    member-secret     the secret by which the members of the run authenticate each other
    admin-token       the token that a sidecar requires for changes
    run/POD.sock      the socket between a pod's sidecar and its main process
    quorums.json      how many controllers of each group run, which differs from the resources meanwhile
    network.json      the loopback network, and the address of every pod that ever existed
    pods.json         the supervisor's last record of each pod
    supervisor.log
    config/POD/       the configuration files, written again at every start
    volumes/POD/      the pods' data: the only part worth keeping
    logs/POD.log      the output of the pod's process; POD.admin.log that of its sidecar; the part
                      before the last rotation has the same name with .1

Files are replaced as a whole, so that a reader never sees half a file."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from epochmq_formats import restored_store
from epochmq_operator.local.errors import StateError
from epochmq_operator.local.process import ProcessIdentity, is_alive
from epochmq_operator.local.state_lock import SupervisorLock, apply_lock
from epochmq_operator.pod_rendering import (
    broker_pod_name,
    controller_pod_name,
)
from epochmq_operator.pods import Component
from epochmq_operator.resources import KINDS, GroupMode, Resources
from epochmq_operator.status_model import PodPhase
from epochmq_protocol.durable_files import replace_file, sync_directory
from epochmq_protocol.transport.member_authentication import MemberAuthentication

T = TypeVar("T")


class PodRecord(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False):
    """The supervisor's record of a pod. `reason` explains the phase in words. `failures` counts the ends
    since the pod was last ready. `since_ms` is when the phase began. `log_offset` is where in its log the
    output of the last process starts. `nameservers` are those that a broker registers with."""

    pod: str
    group: str
    component: Component
    address: str
    phase: PodPhase
    reason: str = ""
    process: ProcessIdentity | None = None
    restarts: int = 0
    failures: int = 0
    since_ms: int = 0
    log_offset: int = 0
    nameservers: list[str] = []
    sidecar: ProcessIdentity | None = None
    awaits_restart: bool = False


class PodsFile(msgspec.Struct, kw_only=True):
    """The content of pods.json. `by` is the supervisor that wrote it, `applied` the digest of the
    resources.json that the pods were rendered from."""

    by: ProcessIdentity
    applied: str
    pods: list[PodRecord]
    changes: list[str] = []
    """The present steps of changes of the number of members of Raft groups, one line for each group; empty:
    none."""


class QuorumRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The controllers of one group, or the brokers of a DLedger group. `running` is the number of their pods,
    `founders` as in `quorum_steps`.
    `changing`: a change of the number has begun and is not known to be completed."""

    running: int
    founders: int
    changing: bool = False


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The content of options.json."""

    admin: bool = False
    """Whether every pod has an admin sidecar."""


class NetworkFile(msgspec.Struct, kw_only=True):
    """The content of network.json."""

    network: str
    addresses: dict[str, str]


class LogKind(StrEnum):
    """What a broker's log is, by who decided when it was written which replica is the master."""

    CONTROLLED = "controlled"
    PLAIN = "plain"
    DLEDGER = "dledger"


class StateDirectory:
    """One state directory. Reading needs no lock; each method that writes says which lock its caller
    holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = SupervisorLock(path / "lock")

    @property
    def absolute(self) -> Path:
        """The absolute path, without symbolic links."""
        return self.path.resolve()

    def exists(self) -> bool:
        """Whether anything was ever run here."""
        return (self.path / "lock").exists()

    def create(self) -> None:
        """Creates the directory. StateError if that fails, or if it holds other files. `volumes` may exist: a
        person has restored stores there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.exists() and any(one.name != "volumes" for one in self.path.iterdir()):
                raise StateError(
                    f"{self.path} is not empty and not a state directory; choose another with --state"
                )
            (self.path / "lock").touch()
        except OSError as error:
            raise StateError(f"{self.path} cannot be the state directory: {error.strerror}") from None

    # paths

    def log_path(self, pod: str) -> Path:
        """The file with a pod's output."""
        return self.path / "logs" / f"{pod}.log"

    def admin_log_path(self, pod: str) -> Path:
        """The file with the output of a pod's sidecar."""
        return self.path / "logs" / f"{pod}.admin.log"

    @property
    def supervisor_log(self) -> Path:
        """The file with a detached supervisor's output."""
        return self.path / "supervisor.log"

    def volume_path(self, pod: str, volume: str) -> Path:
        """The directory of a pod's volume."""
        return self.absolute / "volumes" / pod / volume

    def controllers_with_data(self, group: str) -> int | None:
        """The number of controllers that have a volume here, left by a group of this name; None if no
        controller left data. The supervisor creates all volumes before it starts the first controller."""
        found = list((self.absolute / "volumes").glob(controller_pod_name(group, "[0-9]")))
        return len(found) if any(any(volume.glob("*/*")) for volume in found) else None

    def brokers_with_data(self, group: str) -> list[tuple[LogKind, str]]:
        """(what its log is, pod) of each broker of a group of this name that left a log here."""
        found: list[tuple[LogKind, str]] = []
        for pod in sorted((self.absolute / "volumes").glob(broker_pod_name(group, "[0-9]"))):
            store = pod / "store"
            if any(store.glob("dledger-*/data/*")):
                found.append((LogKind.DLEDGER, pod.name))
            elif any(store.glob("commitlog/*")):
                controlled = (store / "brokerIdentity").exists() or _is_restored_controlled(store)
                found.append((LogKind.CONTROLLED if controlled else LogKind.PLAIN, pod.name))
        return found

    def peers_with_data(self, group: str) -> int | None:
        """The number of brokers of a DLedger group of this name that left data here; None without data. The
        supervisor creates the volumes of all of them before it starts the first."""
        if not any(kind is LogKind.DLEDGER for kind, _ in self.brokers_with_data(group)):
            return None
        return len(list((self.absolute / "volumes").glob(broker_pod_name(group, "[0-9]"))))

    def applying(self) -> contextlib.AbstractContextManager[None]:
        """Excludes other `up` and `down` for the length of a block. StateError if one of them takes too
        long."""
        return apply_lock(self.path / "apply.lock")

    # files

    def supervisor(self) -> ProcessIdentity | None:
        """The supervisor, if it runs."""
        process = self._read("supervisor.json", ProcessIdentity)
        return process if is_alive(process) else None

    def write_supervisor(self, process: ProcessIdentity) -> None:
        """For the holder of the supervisor's lock."""
        self._write("supervisor.json", process)

    def resources(self) -> Resources:
        """The resources to run; none before the first `up` and after `down`."""
        documents = self._read("resources.json", list[Any]) or []
        try:
            return Resources.of(KINDS[document["kind"]].model_validate(document) for document in documents)
        except (ValidationError, KeyError, TypeError):
            raise StateError(
                f"{self.path / 'resources.json'} was written by another version; stop the run with the "
                "version that started it, or remove that file"
            ) from None

    def write_resources(self, resources: Resources) -> None:
        """For `up` and `down`, while `applying`."""
        self._write("resources.json", documents_of(resources))

    def clear_resources(self) -> None:
        """For a supervisor that stops. It does not hold the apply lock, which `down` may hold meanwhile.
        Removing the file needs no temporary file, which an `up` may be writing at the same time."""
        (self.path / "resources.json").unlink(missing_ok=True)
        sync_directory(self.path)

    def options(self) -> RunOptions:
        """The options of the run."""
        return self._read("options.json", RunOptions) or RunOptions()

    def write_options(self, options: RunOptions) -> None:
        """For `up`, while `applying` and nothing runs. Also creates a new admin token."""
        if options.admin:
            (self.path / "run").mkdir(mode=0o700, exist_ok=True)
            replace_file(self.path / "admin-token", f"{secrets.token_urlsafe(32)}\n".encode(), mode=0o600)
        self._write("options.json", options)

    @property
    def member_secret(self) -> Path:
        """The file of the secret by which the members of the run authenticate each other."""
        return self.absolute / "member-secret"

    def write_member_secret(self) -> None:
        """Creates the secret, unless there is one. For the holder of the supervisor's lock."""
        if not self.member_secret.exists():
            replace_file(self.member_secret, f"{secrets.token_hex(32)}\n".encode(), mode=0o600)

    def members(self) -> MemberAuthentication | None:
        """The membership with which commands talk to the pods of the run; None before the first run.
        ConfigError: the file of the secret cannot be used."""
        if not self.member_secret.exists():
            return None
        return MemberAuthentication(str(self.member_secret), required=True)

    def network(self) -> NetworkFile | None:
        """The network and the addresses; None before the first run."""
        return self._read("network.json", NetworkFile)

    def write_network(self, network: NetworkFile) -> None:
        """For the holder of the supervisor's lock."""
        self._write("network.json", network)

    def quorums(self) -> dict[str, QuorumRecord]:
        """The members of each Raft group, by the group's name."""
        return self._read("quorums.json", dict[str, QuorumRecord]) or {}

    def write_quorums(self, quorums: dict[str, QuorumRecord]) -> None:
        """For the holder of the supervisor's lock."""
        self._write("quorums.json", quorums)

    def pods(self) -> PodsFile | None:
        """The supervisor's last records; None before the first run."""
        return self._read("pods.json", PodsFile)

    def write_pods(self, pods: PodsFile) -> None:
        """For the holder of the supervisor's lock."""
        self._write("pods.json", pods)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            data = (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{self.path / name} cannot be read: {error.strerror}") from None
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise StateError(f"{self.path / name} is damaged ({error}); remove it and start again") from None

    def _write(self, name: str, value: object) -> None:
        replace_file(
            self.path / name, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", mode=0o600
        )


def _is_restored_controlled(store: Path) -> bool:
    """Whether a store was restored from a backup of a group with controllers: until its first start it has
    neither identity nor epochs."""
    try:
        mode = restored_store.mode_of((store / restored_store.FILE_NAME).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return False
    return mode == GroupMode.CONTROLLER


def documents_of(resources: Resources) -> list[dict[str, Any]]:
    """The documents of these resources, with defaults filled in."""
    return [group.model_dump(by_alias=True) for group in resources.documents]


def digest_of(resources: Resources) -> str:
    """A digest of the resources: equal for equal content."""
    return hashlib.sha256(msgspec.json.encode(documents_of(resources), order="deterministic")).hexdigest()
