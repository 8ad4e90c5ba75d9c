"""Rejects a pull of what the group may not read."""

from __future__ import annotations

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC = 1, 2, 3
FORBIDDEN_BROADCASTING, FORBIDDEN_SUBSCRIPTION = 4, 5
"""Values of the response's forbiddenType (ForbiddenType)."""


class PullRejectedError(RequestError):
    """A rejection that names what may not be read."""

    def __init__(self, forbidden_type: int, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.forbidden_type = forbidden_type
