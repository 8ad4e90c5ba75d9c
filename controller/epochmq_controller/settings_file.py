"""Loads, shows, changes and saves settings, by the same rules in every process of this package (RocketMQ
`Configuration`).

A change is saved in the file that the process was started with, key by key; the rest of the file stays. (Java
overwrites the file with all keys that it knows. That removes the TLS keys, which it does not know.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from epochmq_controller import text_files
from epochmq_protocol import properties, typed_config
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import ConfigError, RequestError
from epochmq_protocol.transport.outgoing_tls import (
    SPELLINGS,
    USE_KEY,
    outgoing_from_properties,
    with_tls_file,
)
from epochmq_protocol.transport.tls import TlsSettings, tls_from_properties

log = logging.getLogger(__name__)

C = TypeVar("C", bound=msgspec.Struct)


@dataclass(frozen=True)
class LoadedSettings(Generic[C]):
    """The contents of a configuration file."""

    config: C
    tls: TlsSettings
    """TLS of connections that others open to this process."""
    outgoing_tls: TlsSettings | None
    """TLS of connections that this process opens; None: plain ones."""
    extra: dict[str, str]
    """Keys that this process does not know. They are kept and shown, as in Java."""
    warnings: list[str]


def load(
    kind: type[C],
    text: str,
    overrides: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    *,
    without: Collection[str] = (),
    known_elsewhere: Set[str] = frozenset(),
) -> LoadedSettings[C]:
    """Loads a properties text. `overrides` win over it, and it wins over `defaults`. Keys in `without` are
    ignored. Keys in `known_elsewhere` cause no warning. ConfigError names a key, its value and what was
    expected."""
    values = {**(defaults or {}), **properties.parse(text), **(overrides or {})}
    values = with_tls_file({key: value for key, value in values.items() if key not in without})
    tls, rest = tls_from_properties(values)
    outgoing = outgoing_from_properties(values, tls.mode)
    values = {key: value for key, value in rest.items() if key not in SPELLINGS and key != USE_KEY}
    known = typed_config.keys(kind)
    extra = {key: value for key, value in values.items() if key not in known}
    config, warnings = typed_config.load(
        kind, {key: value for key, value in values.items() if key in known or key not in known_elsewhere}
    )
    return LoadedSettings(config, tls, outgoing, extra, warnings)


def to_text(config: msgspec.Struct, extra: Mapping[str, str]) -> str:
    """Formats all settings as sorted `key=value` lines, the form of responses."""
    return properties.format({**extra, **typed_config.to_properties(config)}, is_sorted=True)


def change(
    config: C,
    extra: dict[str, str],
    body: bytes,
    *,
    black_list: Set[str],
    changeable: Set[str],
    check: Callable[[C], None],
) -> tuple[C, dict[str, str]]:
    """Returns (the changed settings, the keys that changed) for a request that changes all keys of its body
    or none. RequestError NO_PERMISSION for a key in `black_list`. SYSTEM_ERROR for an invalid value (Java
    silently keeps the old one), and for a key that is not in `changeable`, and so cannot change while the
    process runs, and for a long body. Unknown keys change nothing but `extra`, in place. Blanks around keys
    do not count."""
    properties.check_request(body)
    parsed = properties.parse(body.decode("utf-8", "replace"))
    changes = {key.strip(): value for key, value in parsed.items()}
    if not black_list.isdisjoint(changes):
        raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    before = typed_config.to_properties(config)
    try:
        changed, _ = typed_config.update(
            config, {key: changes[key] for key in changes.keys() & typed_config.keys(type(config))}
        )
        after = typed_config.to_properties(changed)
        for key in sorted((changes.keys() & typed_config.keys(type(config))) - changeable):
            if before.get(key) != after.get(key):
                expected = f"{before.get(key, '')}, for it is fixed while the process runs"
                raise ConfigError(key, changes[key], f"{expected}; change it in the file and restart")
        check(changed)
    except ConfigError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    own = {key: after.get(key, "") for key in changes if before.get(key) != after.get(key)}
    kept = {key: value for key, value in changes.items() if extra.get(key, value) != value}
    extra.update(kept)
    return changed, own | kept


def save(path: str, changes: Mapping[str, str]) -> None:
    """Saves these keys in a file, and keeps the rest of it. If the file cannot be written, logs an error; the
    change holds until the next start, as in Java."""
    if not changes:
        return
    place = Path(path).expanduser()
    try:
        text_files.write_text(place, properties.rewrite(text_files.read_text(place) or "", changes))
    except OSError as error:
        log.error("the settings changed, but cannot be saved in %s: %s", place, error)
