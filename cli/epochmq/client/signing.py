"""Reads the credentials with which the command's clients sign their requests."""

from __future__ import annotations

import os
from typing import Final

from epochmq_protocol.signatures import SessionCredentials

ACCESS_KEY_VARIABLE: Final = "EPOCHMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "EPOCHMQ_SECRET_KEY"


def environment_credentials() -> SessionCredentials | None:
    """The user in the environment; None, and requests are not signed, unless both variables are set."""
    access_key, secret_key = os.environ.get(ACCESS_KEY_VARIABLE), os.environ.get(SECRET_KEY_VARIABLE)
    return SessionCredentials(access_key, secret_key) if access_key and secret_key else None
