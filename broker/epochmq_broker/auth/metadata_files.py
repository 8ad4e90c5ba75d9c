"""Reads and writes `config/auth.json`, the file of the users and ACLs; reads RocketMQ 4's `plain_acl.yml`.

RocketMQ keeps users and ACLs in RocksDB, in `config/users` and `config/acls`. This broker does not read them:
`mqadmin copyUser` and `copyAcl` copy them from a running RocketMQ broker. `auth.json` holds passwords, so
only its owner can read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final, cast

from epochmq_broker.auth.acl_encoding import AclFileEntries
from epochmq_broker.auth.acls import Acl
from epochmq_broker.auth.metadata import AuthMetadata, UsersAndAcls
from epochmq_broker.auth.plain_acl import accounts_of, migrated
from epochmq_broker.auth.users import User
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import UserInfo, from_json
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.steps import finish
from epochmq_store.state_files.rendered_table import RenderedTable
from epochmq_store.state_files.state_file_io import PRIVATE_FILE, read_state_file

log = logging.getLogger(__name__)

PLAIN_ACL_BYTES_MAX: Final = 16 << 20
"""A larger file is rejected."""


class AuthFile:
    """The file of one broker. `write` replaces its content so that a kill does not undo it."""

    def __init__(self, directory: Path, metadata: AuthMetadata, write: Callable[[Path, bytes], None]) -> None:
        self._directory = directory
        self._path = directory / PRIVATE_FILE
        self._metadata = metadata
        self._write = write
        self._entries = AclFileEntries()
        self._prepared: tuple[Acl, bytes] | None = None
        self._acls = RenderedTable(lambda _, acl: self._acl_item(cast(Acl, acl)))
        self._users = RenderedTable(lambda _, user: _item(cast(User, user).info()))
        metadata.on_change.append(self._changed)
        metadata.before_change.append(self._prepare)

    def load(self) -> None:
        """Fills the tables from the file, or from its backup. Raises if both are damaged."""
        found = read_state_file(self._path, _decode)
        if found is not None:
            self._metadata.restore(found)
            self.encode()  # each entry before the broker serves
        elif any((self._directory / name).is_dir() for name in ("users", "acls")):
            log.warning(
                "%s has users and ACLs of a RocketMQ broker, which this broker does not read: copy them with "
                "mqadmin copyUser and copyAcl",
                self._directory,
            )

    def _changed(self) -> None:
        self._write(self._path, self.encode())
        self._prepared = None

    def _prepare(self, acl: Acl) -> Generator[None, None, None]:
        """Encodes the ACL that a request is about to set."""
        self._prepared = acl, (yield from self._entries.steps(acl))

    def _acl_item(self, acl: Acl) -> bytes:
        if self._prepared is not None and self._prepared[0] is acl:
            encoded = self._prepared[1]
        else:
            encoded = finish(self._entries.steps(acl))
        return b"\n\t\t" + encoded

    def encode(self) -> bytes:
        """Encodes the file."""
        self._acls.changed_everywhere()
        self._users.changed_everywhere()
        self._entries.keep_only(self._metadata.acls)
        acls, users = self._acls.join(self._metadata.acls), self._users.join(self._metadata.users)
        return b'{\n\t"acls":%b,\n\t"users":%b\n}' % (_list(acls), _list(users))


def _item(info: UserInfo) -> bytes:
    return b"\n\t\t" + fastjson.dumps(info, pretty=True).replace(b"\n", b"\n\t\t")


def _list(items: bytes) -> bytes:
    return b"[%b\n\t]" % items if items else b"[]"


def _decode(data: bytes) -> UsersAndAcls:
    content = from_json(UsersAndAcls, data)
    AuthMetadata().restore(content)  # raises for content that no broker wrote
    return content


def take_over_plain_acl(home: Path, metadata: AuthMetadata) -> int:
    """Adds the accounts of RocketMQ 4's files below `home` that are no users yet, and returns their number.
    An account that cannot be taken over is logged. ConfigError: a file cannot be read."""
    known = metadata.users.keys() | metadata.acls.keys()
    count = 0
    for account in accounts_of(map(_read_yaml, _plain_acl_files(home))):
        if account["accessKey"] in known:
            continue
        try:
            user, acl = migrated(account)
        except ValueError as error:
            log.error("an account of plain_acl.yml was not taken over: %s", error)
            continue
        metadata.add(user, acl)
        count += 1
    return count


def _plain_acl_files(home: Path) -> Iterator[Path]:
    """`conf/acl/**/*.yml` and `conf/plain_acl.yml`, in RocketMQ's order; names are sorted."""
    folder = home / "conf" / "acl"
    yield from sorted(path for path in folder.rglob("*") if path.suffix in (".yml", ".yaml"))
    default = home / "conf" / "plain_acl.yml"
    if default.is_file():
        yield default


def _read_yaml(path: Path) -> Any:
    import yaml  # only a broker that takes over files needs it

    try:
        if path.stat().st_size > PLAIN_ACL_BYTES_MAX:
            raise ValueError(f"it is larger than {PLAIN_ACL_BYTES_MAX} bytes")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError("migrateAuthFromV1Enabled", "true", f"a readable file {path}: {error}") from None
