"""Reads named profiles: the file in which a user keeps how to reach clusters, and with which credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from epochmq.exits import UsageError

CONFIG_VARIABLE: Final = "EPOCHMQ_CONFIG"
PROFILE_VARIABLE: Final = "EPOCHMQ_PROFILE"
FIELDS: Final = ("nameserver", "state", "accessKey", "secretKey", "secretKeyFile", "tls", "caFile")
BYTES_MAX: Final = 1024 * 1024
"""A larger file has no profiles: YAML of many MB takes minutes to read."""
OTHERS_MAY: Final = 0o077
"""The permission bits of a file that other users of the machine have."""


class Profile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How to reach one cluster: by `nameserver` (HOST:PORT, separated by `;`), or by the state directory of
    a run. `tls` encrypts every connection; with `caFile` it also verifies the servers."""

    nameserver: str | None = None
    state: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    secret_key_file: str | None = None
    tls: bool = False
    ca_file: str | None = None

    def secret(self, name: str) -> str | None:
        """The secret key, from the profile or from the file that it names. Raises UsageError."""
        if self.secret_key_file is None:
            return self.secret_key
        path = Path(self.secret_key_file).expanduser()
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"profile {name}: secretKeyFile {path} cannot be read: {error}") from None


class _ProfilesFile(msgspec.Struct, forbid_unknown_fields=True):
    profiles: dict[str, Profile] = {}
    current: str | None = None


def profiles_path() -> Path:
    """The file with the profiles: `EPOCHMQ_CONFIG`, or `epochmq/config.yaml` in the user's configuration."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "epochmq" / "config.yaml"


def chosen_profile(name: str | None) -> tuple[str, Profile] | None:
    """The named profile; without a name that of `EPOCHMQ_PROFILE`, or the file's `current` one. None if there
    is none. Raises UsageError for a name that the file lacks, and for a file that cannot be used."""
    name = name or os.environ.get(PROFILE_VARIABLE) or None
    path = profiles_path()
    if not path.exists():
        if name is None:
            return None
        raise UsageError(f"profile {name}: there is no file {path}; it lists profiles (docs/command.md)")
    known = _read(path)
    name = name or known.current
    if name is None:
        return None
    if name not in known.profiles:
        listed = ", ".join(sorted(known.profiles)) or "none"
        raise UsageError(f"profile {name}: not in {path}; it has: {listed}")
    return name, known.profiles[name]


class _FieldError(Exception):
    """A field of the file has another value than expected; the text names the field, the value and what was
    expected."""


def _profiles_of(document: Any) -> _ProfilesFile:
    """The profiles in a document. Raises _FieldError."""
    _check_fields("the file", document, {"profiles": dict, "current": str}, "profiles and current")
    profiles = document.get("profiles") or {}
    for name, fields in profiles.items():
        if not isinstance(name, str):
            raise _FieldError(f"profiles: the name {name!r}, expected text; put it in quotes")
        types = {field: bool if field == "tls" else str for field in FIELDS}
        _check_fields(f"profiles.{name}", fields, types, ", ".join(FIELDS))
    given = {
        name: {field: value for field, value in fields.items() if value is not None}
        for name, fields in profiles.items()
    }
    return msgspec.convert({**document, "profiles": given}, _ProfilesFile)


def _check_fields(where: str, value: Any, types: Mapping[str, type], fields: str) -> None:
    words = {str: "text", bool: "true or false", dict: "a mapping of names to profiles"}
    if not isinstance(value, dict):
        raise _FieldError(f"{where}: {_shown(value)}, expected a mapping with {fields}")
    path = "" if where == "the file" else f"{where}."
    for field, given in value.items():
        if field not in types:
            raise _FieldError(f"{path}{field}: unknown field, expected {fields}")
        if given is not None and not isinstance(given, types[field]):
            raise _FieldError(f"{path}{field}: {_shown(given)}, expected {words[types[field]]}")


def _shown(value: Any) -> str:
    """A value of a wrong type; never what could be a secret, which is a text."""
    if isinstance(value, bool):
        return str(value).lower()
    kinds: dict[type, str] = {str: "a text", list: "a list", dict: "a mapping"}
    return str(value) if isinstance(value, int | float) else kinds.get(type(value), "another type")


def _read(path: Path) -> _ProfilesFile:
    import yaml

    try:
        mode = path.stat().st_mode
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise UsageError(f"profiles {path}: more than {BYTES_MAX} bytes, expected a file with profiles")
        document: Any = yaml.safe_load(data.decode())
        known = _profiles_of(document if document is not None else {})
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"profiles {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise UsageError(f"profiles {path}{line}: not valid YAML") from None
    except _FieldError as error:
        raise UsageError(f"profiles {path}: {error}") from None
    if mode & OTHERS_MAY and any(profile.secret_key for profile in known.profiles.values()):
        raise UsageError(
            f"profiles {path}: other users may read it, and it holds a secretKey; "
            f"correct it with: chmod 600 {path}"
        )
    return known
