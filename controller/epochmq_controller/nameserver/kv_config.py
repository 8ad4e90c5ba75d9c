"""Namespaces of keys and values, kept in a file (RocketMQ KVConfigManager).

One namespace is in use: `ORDER_TOPIC_CONFIG`, topic to `broker-a:4;broker-b:4`. The file is Java's
`kvConfig.json`, `{"configTable":{"namespace":{"key":"value"}}}`, written at every change.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from epochmq_controller import files
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
        """Reads the file, if there is one. ConfigError when it is not one: overwriting it would lose what a
        person may still save."""
        text = files.read_text(self._path)
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
        """All of a namespace; None when it never had a key. One whose last key was deleted is empty, as in
        Java."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Sets a value, which holds at once, and returns when the file is written."""
        self._table.setdefault(namespace, {})[key] = value
        log.info("KV config %s %s=%s", namespace, key, value)
        await self._persist()

    async def delete(self, namespace: str, key: str) -> None:
        """Drops a value, which is gone at once, and returns when the file is written."""
        self._table.get(namespace, {}).pop(key, None)
        log.info("KV config %s %s deleted", namespace, key)
        await self._persist()

    async def _persist(self) -> None:
        """One write at a time, each of all that holds when it begins. A slow disk holds up the one who asked,
        and no broker that registers meanwhile."""
        async with self._writing:
            text = to_json(KVConfigSerializeWrapper(config_table=self._table)).decode()
            try:
                await asyncio.to_thread(files.write_text, self._path, text)
            except OSError as error:  # it holds in memory all the same, as in Java
                log.error("KV config not written: %s", error)
