"""Defines the errors of the local runtime."""

from __future__ import annotations

from epochmq_protocol.errors import EpochMQError


class StateError(EpochMQError):
    """The state directory cannot be used as requested; the message says why."""


class NetworkError(EpochMQError):
    """No address is available for a pod; the message says why and what to do."""


class NotReadyError(EpochMQError):
    """A started pod is not ready. The message names each such pod, the reason, and the end of its log."""
