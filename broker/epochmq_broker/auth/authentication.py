# pure: a request and a user in, a decision out
"""Decides whether a request comes from the user that it names (RocketMQ's DefaultAuthenticationHandler)."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.auth.users import User, UserStatus
from epochmq_protocol.frame import Command
from epochmq_protocol.signatures import ACCESS_KEY, has_signature


def claimed_username(command: Command) -> str | None:
    """The user that a request names; None if it names none."""
    return (command.ext or {}).get(ACCESS_KEY)


def reason_for_rejection(command: Command, users: Mapping[str, User]) -> str | None:
    """Why the request is not from the user that it names, in RocketMQ's words; None if it is."""
    name = claimed_username(command)
    if not name:
        return "username cannot be null."
    user = users.get(name)
    if user is None:
        return f"User:{name} is not found."
    if user.user_status is UserStatus.DISABLE:
        return f"User:{name} is disabled."
    return None if has_signature(command, user.password) else "check signature failed."
