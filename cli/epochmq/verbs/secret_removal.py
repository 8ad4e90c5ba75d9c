"""Removes secrets from texts that leave the machine: values of keys that hold secrets, and every known secret
wherever it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from epochmq_protocol import properties
from epochmq_protocol.admin_api.common_operations import REDACTED, SECRET_KEY_WORDS

SECRET_WORDS = (*SECRET_KEY_WORDS, "token", "privatekey")
SECRET_LENGTH_MIN = 3
"""A shorter value is no secret, and its removal would make texts unreadable."""
NO_SECRETS = ("true", "false", "null", "none", REDACTED)
_ASSIGNMENT = re.compile(
    r"""(?i)([\w.-]*(?:"""
    + "|".join(SECRET_WORDS)
    + r""")[\w.-]*\\?["']?\s*[=:]\s*)(\\?"(?:[^"\\]|\\.)*"|'[^']*'|\{[^}]*\}|[^\s,;}\])]+)"""
)
_BEARER = re.compile(r"(?i)(bearer\s+)[\w.~+/=-]+")
_SIGNATURE = re.compile(r"""(?i)(signature\\?["']?\s*[=:]\s*\\?["']?)[\w+/=-]+""")
PRIVATE_KEY = "PRIVATE KEY"


def is_secret_key(key: str) -> bool:
    """Whether the value of a setting with this key is a secret."""
    plain = key.lower().replace("_", "").replace("-", "")
    return any(word in plain for word in SECRET_WORDS)


def names_a_file(key: str) -> bool:
    """Whether the value of the key is the path of a file, which may hold secrets."""
    return key.lower().endswith(("path", "file"))


def without_secret_values(document: Any) -> Any:
    """A JSON document in which values of secret keys are `***`."""
    if isinstance(document, dict):
        return {
            key: REDACTED if is_secret_key(str(key)) and value else without_secret_values(value)
            for key, value in document.items()
        }
    if isinstance(document, list):
        return [without_secret_values(one) for one in document]
    return document


def secrets_in_settings(text: str) -> Iterator[str]:
    """The values of the secret keys in a file of `KEY=VALUE` lines, and the secrets in values that are
    JSON. A backslash may be Java's escape, or a part of the value: both readings count."""
    as_written = (line.partition("=")[::2] for line in text.splitlines())
    for key, value in (*properties.parse(text).items(), *as_written):
        if is_secret_key(key) and not names_a_file(key):
            yield value
        yield from secrets_in_json(value)


def secrets_in_json(text: str) -> Iterator[str]:
    """The texts of the secret keys in a JSON document; none in what is not JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from _secrets_in(document)


def _secrets_in(document: Any) -> Iterator[str]:
    if isinstance(document, list):
        for one in document:
            yield from _secrets_in(one)
    elif isinstance(document, dict):
        for key, value in document.items():
            if isinstance(value, str):
                if is_secret_key(str(key)) and not names_a_file(str(key)):
                    yield value
                yield from secrets_in_json(value)
            else:
                yield from _secrets_in(value)


class SecretRemoval:
    """Removes known secrets, and what looks like one, from texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {one.strip() for one in secrets}
        written = {form for one in known if _counts(one) for form in _forms(one)}
        # The longest first, because one secret may be a part of another.
        ordered = sorted(written, key=lambda one: (-len(one), one))
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def clean(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        text = _ASSIGNMENT.sub(rf"\g<1>{REDACTED}", text)
        text = _SIGNATURE.sub(rf"\g<1>{REDACTED}", text)
        return _BEARER.sub(rf"\g<1>{REDACTED}", text)

    def clean_json(self, text: str) -> str:
        """A JSON document without secrets; what is not JSON as a text."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return self.clean(text)
        shown = json.dumps(without_secret_values(document), indent=2, ensure_ascii=False)
        return (self._known.sub(REDACTED, shown) if self._known is not None else shown) + "\n"

    def clean_settings(self, text: str) -> str:
        """A file of `KEY=VALUE` lines without secrets."""
        lines: list[str] = []
        continues = False
        for line in text.splitlines():
            key, separator, _ = line.partition("=")
            if continues:
                lines.append(REDACTED)
            elif separator and is_secret_key(key) and not line.lstrip().startswith("#"):
                lines.append(f"{key}={REDACTED}")
            else:
                lines.append(self.clean(line))
                continue
            continues = line.endswith("\\")
        return "\n".join(lines) + "\n"


def _counts(secret: str) -> bool:
    return len(secret) >= SECRET_LENGTH_MIN and secret.lower() not in NO_SECRETS


def _forms(secret: str) -> set[str]:
    """The secret as it stands in a text, in JSON, and in a file of settings."""
    in_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {secret, *in_json, properties.format({"k": secret}).strip().removeprefix("k=")}
