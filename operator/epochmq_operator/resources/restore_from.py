"""Defines `spec.restoreFrom` of a `BrokerGroup`: the backup from which a new group starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources.backup_location import (
    CLAIM_URL,
    EXPECTED_OF_LOCATIONS,
    LOCATION_RULES,
    BackupLocation,
)

BACKUP_ID = r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}$"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z$"
OFFSET_MAX = 1 << 53
"""Bytes, the greatest number up to which Helm keeps all: 9 petabytes of log."""
_WITH_CREDENTIALS = re.compile(r"[a-z0-9]+://[^/?]*@")


def milliseconds_of(time: str) -> int:
    """A time of the field `time` in milliseconds since 1970. ValueError if there is no such day or hour."""
    return int(datetime.fromisoformat(time).astimezone(UTC).timestamp()) * 1000


def _checked_time(time: str) -> str:
    milliseconds_of(time)
    return time


class RestoreFromSpec(BackupLocation):
    """The backup from which a new group starts."""

    backup: Annotated[
        str | None,
        Field(
            max_length=30,
            pattern=BACKUP_ID,
            description="Id of the backup. Default: the newest one at the url when the group is created.",
        ),
    ] = None
    offset: Annotated[
        int | None,
        Field(
            ge=0,
            le=OFFSET_MAX,
            description="Restore the records before this physical offset of the log only. Default: all.",
        ),
    ] = None
    time: Annotated[
        Annotated[str, Field(max_length=30, pattern=TIME), AfterValidator(_checked_time)] | None,
        Field(
            description="Restore the messages up to the first one that was stored after this time (UTC) only."
        ),
    ] = None

    @property
    def time_ms(self) -> int | None:
        """The field `time` in milliseconds since 1970."""
        return None if self.time is None else milliseconds_of(self.time)

    @model_validator(mode="after")
    def _check_point(self) -> Self:
        if self.offset is not None and self.time is not None:
            raise PydanticCustomError(
                "spans",
                "expected no such field together with spec.restoreFrom.time: remove one of them",
                {"at": "offset"},
            )
        return self

    @model_validator(mode="after")
    def _check_location(self) -> Self:
        rules = dict(zip(("claim", "file", "credentials"), LOCATION_RULES, strict=True))
        on_claim = self.url.startswith(f"{CLAIM_URL}/")
        if _WITH_CREDENTIALS.match(self.url):
            raise PydanticCustomError("spans", "{why}", {"at": "url", "why": rules["credentials"][1]})
        if self.url.startswith("file:") and not on_claim:
            raise PydanticCustomError("spans", "{why}", {"at": "url", "why": rules["file"][1]})
        if on_claim != (self.claim_name is not None):
            raise PydanticCustomError("spans", "{why}", {"at": "claimName", "why": rules["claim"][1]})
        return self


RESTORE_FROM_RULES: tuple[tuple[str, str], ...] = (
    *LOCATION_RULES,
    ("!has(self.offset) || !has(self.time)", "offset and time both say up to where: remove one of them"),
)
"""Rules of the API server at `spec.restoreFrom`: CEL, and the message."""

EXPECTED_OF_RESTORES: Mapping[str, str] = {
    **EXPECTED_OF_LOCATIONS,
    "backup": "the id of a backup, such as 20300131T140000Z-0a1b2c",
    "offset": "a whole number of at least 0",
    "time": 'a time in UTC in quotes, such as "2030-01-31T14:00:00Z"',
}
"""What each field accepts, in words."""
