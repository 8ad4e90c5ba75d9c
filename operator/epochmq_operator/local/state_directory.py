"""The state directory: all that a run keeps on disk, and who may change it.

    lock              held by the supervisor for as long as it lives
    apply.lock        held while resources are taken in, so that two `up` do not mix
    supervisor.json   which process the supervisor is
    resources.json    what is to run: the documents, checked, as `up` took them in
    options.json      how it is to run: whether pods have admin sidecars
    admin-token       what a request that changes something must bring to a sidecar
    run/POD.sock      where a pod's sidecar meets its main process
    network.json      the loopback network, and the address of every pod there ever was
    pods.json         what the supervisor last knew of each pod
    supervisor.log
    config/POD/       the configuration files, written anew at every start
    volumes/POD/      the pods' data: the only part worth keeping
    logs/POD.log      what the pod's process wrote, and POD.admin.log what its sidecar did; the
                      part before the last rotation in the same name with .1

Files are replaced as a whole, so that a reader never meets half of one. The locks are the operating system's:
they end with their holder, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from epochmq_operator.local.network import allocate
from epochmq_operator.local.process import ProcessIdentity, is_alive
from epochmq_operator.pod_rendering import (
    Component,
    Pod,
    PodPlacement,
    SidecarPlacement,
    broker_pod_name,
    controller_pod_name,
    pods_of,
    render_pods,
)
from epochmq_operator.resources import KINDS, BrokerGroup, Resources
from epochmq_protocol.errors import ConfigError, EpochMQError
from epochmq_protocol.transport.admin_socket import check_admin_socket_path

T = TypeVar("T")

APPLY_WAIT_S = 120.0
LOCK_WAIT_S = 2.0
_POLL_S = 0.05


class StateError(EpochMQError):
    """The state directory cannot be used as asked; the message says why."""


class PodPhase(StrEnum):
    """Where a pod is. `Waiting`: for the pods it depends on. `Starting`: its process runs and was not ready
    yet. `Unready`: it was, and does not answer now. `BackOff`: its process ended and is started again after a
    delay."""

    WAITING = "Waiting"
    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    BACK_OFF = "BackOff"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class PodRecord(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False):
    """What the supervisor knows of a pod. `reason` says in words why it is in its phase; `failures` counts
    the ends since it last was ready; `since_ms` is when the phase began, `log_offset` where in its log the
    output of the last process starts; `nameservers` are those that a broker registers with."""

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


class PodsFile(msgspec.Struct, kw_only=True):
    """pods.json. `by` is the supervisor that wrote it, `applied` the digest of the resources.json that these
    pods follow from."""

    by: ProcessIdentity
    applied: str
    pods: list[PodRecord]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """options.json."""

    admin: bool = False
    """Whether every pod has its admin sidecar beside it."""


class NetworkFile(msgspec.Struct, kw_only=True):
    """network.json."""

    network: str
    addresses: dict[str, str]


class StateDirectory:
    """One state directory. Reading needs no lock; what is written by whom is said at each method."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_file: int | None = None

    @property
    def absolute(self) -> Path:
        """The directory's one name, whichever way it was reached."""
        return self.path.resolve()

    def exists(self) -> bool:
        """Whether anything was ever run here."""
        return (self.path / "lock").exists()

    def create(self) -> None:
        """Makes the directory. StateError when that cannot be done, or it holds something else."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.exists() and any(self.path.iterdir()):
                raise StateError(
                    f"{self.path} is not empty and no state directory; choose another with --state"
                )
            (self.path / "lock").touch()
        except OSError as error:
            raise StateError(f"{self.path} cannot be the state directory: {error.strerror}") from None

    # places

    def log_path(self, pod: str) -> Path:
        """Where a pod's output goes."""
        return self.path / "logs" / f"{pod}.log"

    def admin_log_path(self, pod: str) -> Path:
        """Where the output of a pod's sidecar goes."""
        return self.path / "logs" / f"{pod}.admin.log"

    @property
    def supervisor_log(self) -> Path:
        """Where a detached supervisor's output goes."""
        return self.path / "supervisor.log"

    def volume_path(self, pod: str, volume: str) -> Path:
        """Where a pod's volume lies."""
        return self.absolute / "volumes" / pod / volume

    def controllers_with_data(self, group: str) -> int | None:
        """Of how many controllers the data lies here that a group of this name left; None: no data. The
        supervisor makes the volumes of all before it starts the first."""
        found = list((self.absolute / "volumes").glob(controller_pod_name(group, "[0-9]")))
        return len(found) if any(any(volume.glob("*/*")) for volume in found) else None

    def brokers_with_data(self, group: str) -> list[tuple[bool, str]]:
        """(Was it under controllers?, pod) of each broker of a group of this name that left a log here."""
        found = sorted((self.absolute / "volumes").glob(broker_pod_name(group, "[0-9]")))
        return [
            ((store / "brokerIdentity").exists(), pod.name)
            for pod in found
            if any((store := pod / "store").glob("commitlog/*"))
        ]

    def placement(self, pod: str, address: str, volumes: tuple[str, ...]) -> PodPlacement:
        """Where a pod will be."""
        return PodPlacement(
            address=address,
            bind_address=address,
            config_directory=str(self.absolute / "config" / pod),
            volumes={volume: str(self.volume_path(pod, volume)) for volume in volumes},
            admin=self._sidecar_placement(pod, address) if self.options().admin else None,
        )

    def _sidecar_placement(self, pod: str, address: str) -> SidecarPlacement:
        socket = str(self.absolute / "run" / f"{pod}.sock")
        try:
            check_admin_socket_path(socket)
        except ConfigError as error:
            raise StateError(
                f"{self.path} cannot hold the sockets of admin sidecars: {error}; choose a shorter --state"
            ) from None
        return SidecarPlacement(socket, address, {"adminTokenFile": str(self.absolute / "admin-token")})

    # locks

    def try_lock(self) -> bool:
        """Becomes the one that runs things here; kept until `unlock` or the end of this process."""
        if self._lock_file is None:
            self._lock_file = _try_flock(self.path / "lock")
        return self._lock_file is not None

    async def lock(self) -> None:
        """Like `try_lock`, but waits out one that only looks. StateError when another runs things here."""
        deadline = time.monotonic() + LOCK_WAIT_S
        while not self.try_lock():
            if time.monotonic() > deadline:
                raise StateError(f"{self.path} is in use by another supervisor")
            await asyncio.sleep(_POLL_S)

    def unlock(self) -> None:
        """Lets another run things here."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def is_locked(self) -> bool:
        """Whether another process (or this one) runs things here."""
        if self._lock_file is not None:
            return True
        if not self.exists():
            return False
        attempt = _try_flock(self.path / "lock")
        if attempt is None:
            return True
        os.close(attempt)
        return False

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """Keeps other `up` and `down` out meanwhile. StateError when one of them takes too long."""
        deadline = time.monotonic() + APPLY_WAIT_S
        while (held := _try_flock(self.path / "apply.lock")) is None:
            if time.monotonic() > deadline:
                raise StateError(f"another up or down is at work in {self.path}, for {APPLY_WAIT_S:.0f} s")
            time.sleep(_POLL_S)
        try:
            yield
        finally:
            os.close(held)

    # files

    def supervisor(self) -> ProcessIdentity | None:
        """The supervisor, if it runs."""
        process = self._read("supervisor.json", ProcessIdentity)
        return process if is_alive(process) else None

    def write_supervisor(self, process: ProcessIdentity) -> None:
        """By the supervisor, once it has the lock."""
        self._write("supervisor.json", process)

    def resources(self) -> Resources:
        """What is to run; nothing before the first `up` and after `down`."""
        documents = self._read("resources.json", list[Any]) or []
        try:
            return Resources.of(KINDS[document["kind"]].model_validate(document) for document in documents)
        except (ValidationError, KeyError, TypeError):
            raise StateError(
                f"{self.path / 'resources.json'} is not of this version; stop what runs with the version "
                "that started it, or remove that file"
            ) from None

    def write_resources(self, resources: Resources) -> None:
        """By `up` and `down`, while `applying`."""
        self._write("resources.json", documents_of(resources))

    def options(self) -> RunOptions:
        """How it is to run."""
        return self._read("options.json", RunOptions) or RunOptions()

    def write_options(self, options: RunOptions) -> None:
        """By `up`, while `applying`, when nothing runs. The admin token is made anew."""
        if options.admin:
            (self.path / "run").mkdir(mode=0o700, exist_ok=True)
            self._replace("admin-token", f"{secrets.token_urlsafe(32)}\n".encode())
        self._write("options.json", options)

    def network(self) -> NetworkFile | None:
        """The network and addresses; None before the first run."""
        return self._read("network.json", NetworkFile)

    def write_network(self, network: NetworkFile) -> None:
        """By the holder of the lock."""
        self._write("network.json", network)

    def pods(self) -> PodsFile | None:
        """What the supervisor last knew; None before the first run."""
        return self._read("pods.json", PodsFile)

    def write_pods(self, pods: PodsFile) -> None:
        """By the holder of the lock."""
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
        self._replace(name, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")

    def _replace(self, name: str, text: bytes) -> None:
        """Readable by nobody else."""
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            Path(temporary).replace(self.path / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def documents_of(resources: Resources) -> list[dict[str, Any]]:
    """The documents that load to these resources, defaults filled in."""
    return [group.model_dump(by_alias=True) for group in resources.documents]


def digest_of(resources: Resources) -> str:
    """One string for these resources: the same for the same content."""
    return hashlib.sha256(msgspec.json.encode(documents_of(resources), order="deterministic")).hexdigest()


def addresses_for(resources: Resources, known: NetworkFile) -> NetworkFile:
    """The network with an address for every pod of the resources. NetworkError when it is full."""
    names = [identity.name for group in resources.groups for identity in pods_of(group)]
    return NetworkFile(network=known.network, addresses=allocate(known.network, known.addresses, names))


def render_all(state: StateDirectory, resources: Resources, network: NetworkFile) -> tuple[Pod, ...]:
    """Every pod of the resources, placed in this directory and network."""
    pods: list[Pod] = []
    for group in resources.groups:
        controllers = resources.controllers_of(group) if isinstance(group, BrokerGroup) else None
        places = {
            identity.name: state.placement(identity.name, network.addresses[identity.name], identity.volumes)
            for identity in (*pods_of(group), *(pods_of(controllers) if controllers is not None else ()))
        }
        pods += render_pods(group, places, controllers)
    return tuple(pods)


def _try_flock(path: Path) -> int | None:
    """An open file with an exclusive lock, or None when another has it. Closing it gives the lock up."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StateError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
