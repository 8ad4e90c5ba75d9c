"""Files of the secrets by which members authenticate each other."""

from __future__ import annotations

from pathlib import Path

SECRET = "a-secret-of-one-group-of-members-1"
OTHER_SECRET = "a-secret-of-another-group-of-members"


def secret_file(path: Path, *secrets: str, mode: int = 0o600) -> str:
    """Replaces the file of the secrets at once, as a mounted Secret is replaced. Returns its path."""
    beside = path.with_suffix(".new")
    beside.write_text("\n".join(secrets or (SECRET,)) + "\n")
    beside.chmod(mode)
    beside.replace(path)
    return str(path)
