"""Keeps namespaces of keys and values in a file (RocketMQ KVConfigManager).

One namespace is in use: `ORDER_TOPIC_CONFIG`, topic to `broker-a:4;broker-b:4`. The file is Java's
`kvConfig.json`, `{"configTable":{"namespace":{"key":"value"}}}`, which every change writes. The table is
bounded: its content is in memory, and a change writes all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from epochmq_controller import text_files
from epochmq_protocol.bodies_admin import KVConfigSerializeWrapper
from epochmq_protocol.bodies_base import from_json, to_json
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import BodyError, ConfigError, RequestError

log = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KVLimits(Struct, frozen=True):
    """The bounds of the table. A file may exceed them; then the table only shrinks."""

    entries_max: int = 10_000
    """Namespaces and keys together (kvConfigMaxEntries)."""
    chars_max: int = 8 << 20
    """Characters of all namespaces, keys and values (kvConfigMaxChars)."""


class KVConfig:
    """The table and its file."""

    def __init__(self, path: Path, limits: Callable[[], KVLimits] = KVLimits) -> None:
        """`limits` returns the bounds that are in force."""
        self._path = path
        self._limits = limits
        self._table: dict[str, dict[str, str]] = {}
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Reads the file, if there is one. ConfigError if it is damaged: overwriting it would destroy data
        that an administrator may still recover."""
        text = text_files.read_text(self._path)
        if text is None:
            return
        try:
            table = from_json(KVConfigSerializeWrapper, text).config_table
        except BodyError as error:
            raise ConfigError("kvConfigPath", self._path, f'{{"configTable":…}} in it ({error})') from None
        self._table.update(table or {})

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace. None if it never had a key; empty if its last key was deleted, as in
        Java."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Sets a value, which takes effect at once. Returns when the file is written, or the failure
        logged. RequestError if the table would grow beyond its bounds."""
        self._check_room(namespace, key, value)
        self._table.setdefault(namespace, {})[key] = value
        log.info("KV config %s %s=%s", namespace, key, value)
        await self._persist()

    async def delete(self, namespace: str, key: str) -> None:
        """Deletes a value, which takes effect at once. Returns when the file is written, or the failure
        logged."""
        self._table.get(namespace, {}).pop(key, None)
        log.info("KV config %s %s deleted", namespace, key)
        await self._persist()

    def _check_room(self, namespace: str, key: str, value: str) -> None:
        table = self._table
        present = table.get(namespace, {}).get(key)
        entries = (present is None) + (namespace not in table)
        chars = len(value) - len(present or "")
        if present is None:
            chars += len(key) + (len(namespace) if namespace not in table else 0)
        limits = self._limits()
        found = sum(1 + len(keys) for keys in table.values()) + entries
        if entries > 0 and found > limits.entries_max:
            raise _full("kvConfigMaxEntries", limits.entries_max, f"{found} namespaces and keys")
        if chars > 0:
            held = sum(
                len(name) + sum(len(one) + len(text) for one, text in keys.items())
                for name, keys in table.items()
            )
            if held + chars > limits.chars_max:
                raise _full("kvConfigMaxChars", limits.chars_max, f"{held + chars} characters")

    async def _persist(self) -> None:
        """Writes the whole table, one write at a time. A slow disk delays the sender of the change, but not
        the brokers that register meanwhile."""
        async with self._writing:
            copy = {namespace: dict(keys) for namespace, keys in self._table.items()}
            try:
                await asyncio.to_thread(self._write, copy)
            except OSError as error:  # the change stays in memory, as in Java
                log.error("cannot write the KV config: %s", error)

    def _write(self, table: dict[str, dict[str, str]]) -> None:
        text_files.write_text(self._path, to_json(KVConfigSerializeWrapper(config_table=table)).decode())


def _full(key: str, count_max: int, found: str) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the KV config would have {found}, more than {key}={count_max} of the nameserver: delete entries "
        f"(mqadmin deleteKvConfig), or raise {key}",
    )
