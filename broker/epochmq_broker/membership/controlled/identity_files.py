"""Reads and writes the files `brokerIdentity` and `brokerIdentity-temp`.

Each file is replaced as a whole and durably: after a kill it has the old content or the new one.
"""

from __future__ import annotations

from pathlib import Path

from epochmq_broker.membership.controlled.identity import (
    BrokerIdApplication,
    BrokerIdentity,
    check,
    parse_application,
    parse_identity,
)
from epochmq_protocol.durable_files import make_directory, replace_file, sync_directory
from epochmq_protocol.errors import ConfigError


class IdentityFiles:
    """The two files of one store."""

    def __init__(self, path: Path) -> None:
        """`path` is the path of `brokerIdentity`."""
        self.path = path
        self.temp_path = path.with_name(path.name + "-temp")

    def load(self, cluster: str, name: str) -> tuple[BrokerIdentity | None, BrokerIdApplication | None]:
        """Reads the identity, or else the application for one. Raises ConfigError if the store belongs to
        another broker, or `brokerIdentity` is broken: the identity must not be guessed. A broken temporary
        file is ignored, because RocketMQ writes it in place."""
        text = _read(self.path)
        if text:
            try:
                identity = parse_identity(text)
            except ValueError as error:
                raise ConfigError(
                    "storePathBrokerIdentity", self.path, f"cluster#name#id in it: {error}"
                ) from None
            check(identity, cluster, name, str(self.path))
            return identity, None
        text = _read(self.temp_path)
        if not text:
            return None, None
        try:
            application = parse_application(text)
        except ValueError:
            return None, None
        check(application.identity, cluster, name, str(self.temp_path))
        return None, application

    def save(self, identity: BrokerIdentity) -> None:
        """Saves the identity and deletes the application. Raises OSError."""
        _replace(self.path, identity.encode())
        self.forget_application()

    def discard(self) -> None:
        """Deletes the identity durably: the store gets another one. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.forget_application()
        sync_directory(self.path.parent)

    def save_application(self, application: BrokerIdApplication) -> None:
        """Saves an application before it is sent. Raises OSError."""
        _replace(self.temp_path, application.encode())

    def forget_application(self) -> None:
        """Deletes the application. Raises OSError."""
        self.temp_path.unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""


def _replace(path: Path, text: str) -> None:
    make_directory(path.parent)
    replace_file(path, text.encode())
