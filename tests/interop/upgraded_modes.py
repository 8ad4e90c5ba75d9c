"""Changes the mode of a stopped group."""

from __future__ import annotations

from tests.support.group_processes import Member


def set_mode(member: Member, *, dledger: bool) -> None:
    """Sets in the configuration of a broker whether its commit log is a DLedger log."""
    text = member.config.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("enableDLegerCommitLog")]
    member.config.write_text("\n".join([*lines, f"enableDLegerCommitLog={str(dledger).lower()}", ""]))
