"""Keeps namespaces of keys and values in a file (RocketMQ KVConfigManager).

One namespace is in use: `ORDER_TOPIC_CONFIG`, topic to `broker-a:4;broker-b:4`. The file is Java's
`kvConfig.json`, `{"configTable":{"namespace":{"key":"value"}}}`, which every change writes.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from epochmq_controller import text_files
from epochmq_protocol.bodies_admin import KVConfigSerializeWrapper
from epochmq_protocol.bodies_base import from_json, to_json
from epochmq_protocol.errors import BodyError, ConfigError

log = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KVConfig:
    """The table and its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
        logged."""
        self._table.setdefault(namespace, {})[key] = value
        log.info("KV config %s %s=%s", namespace, key, value)
        await self._persist()

    async def delete(self, namespace: str, key: str) -> None:
        """Deletes a value, which takes effect at once. Returns when the file is written, or the failure
        logged."""
        self._table.get(namespace, {}).pop(key, None)
        log.info("KV config %s %s deleted", namespace, key)
        await self._persist()

    async def _persist(self) -> None:
        """Writes the whole table, one write at a time. A slow disk delays the sender of the change, but not
        the brokers that register meanwhile."""
        async with self._writing:
            text = to_json(KVConfigSerializeWrapper(config_table=self._table)).decode()
            try:
                await asyncio.to_thread(text_files.write_text, self._path, text)
            except OSError as error:  # the change stays in memory, as in Java
                log.error("cannot write the KV config: %s", error)
