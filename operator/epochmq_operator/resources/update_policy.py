"""Defines the model of `spec.updatePolicy`: when and for what the operator restarts running pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from epochmq_operator.resources import cron
from epochmq_operator.resources.documents import DocumentModel, enum_by_value, kubernetes_only

SCHEDULE = r"^[0-9*/,-]+( [0-9*/,-]+){4}$"
SCHEDULE_LENGTH_MAX = 100
WINDOWS_MAX = 16
WINDOW_MINUTES_MIN, WINDOW_MINUTES_MAX = 5, 7 * 24 * 60


def checked_schedule(text: str) -> str:
    """Checks a cron schedule."""
    try:
        cron.parse_schedule(text)
    except ValueError as error:
        raise PydanticCustomError("refused", "{why}", {"why": str(error)}) from None
    return text


class OperatorChanges(StrEnum):
    """What a group gets of a new release of the operator, or of a new setting."""

    KEEP = "Keep"
    FOLLOW = "Follow"


class UpdateApproval(StrEnum):
    """Who starts an update."""

    AUTOMATIC = "Automatic"
    SUPERVISED = "Supervised"


class MaintenanceWindow(DocumentModel):
    """A time in which updates may restart pods."""

    schedule: Annotated[
        str,
        kubernetes_only(
            "When the window begins: a cron schedule in UTC, of minute, hour, day, month, day of the week.",
            max_length=SCHEDULE_LENGTH_MAX,
            pattern=SCHEDULE,
        ),
        AfterValidator(checked_schedule),
    ]
    minutes: Annotated[
        int,
        kubernetes_only("How long it lasts.", ge=WINDOW_MINUTES_MIN, le=WINDOW_MINUTES_MAX),
    ]

    def is_open(self, now: float) -> bool:
        """Whether the window is open at this time, in seconds since 1970."""
        begin = now - self.minutes * 60
        return cron.parse_schedule(self.schedule).last_between(begin, now) is not None


class UpdatePolicySpec(DocumentModel):
    """When and for what the operator restarts running pods. Pods that cannot run are replaced at any time."""

    operator_changes: Annotated[
        OperatorChanges,
        enum_by_value(OperatorChanges),
        kubernetes_only(
            "`Keep`: a new release of the operator, or another default image in its settings, restarts no "
            "pod; the group gets it with its next update. `Follow`: it is an update by itself."
        ),
    ] = OperatorChanges.KEEP
    approval: Annotated[
        UpdateApproval,
        enum_by_value(UpdateApproval),
        kubernetes_only(
            "`Supervised`: an update waits for the annotation `epochmq.io/approve-update`, whose value the "
            "condition Progressing gives."
        ),
    ] = UpdateApproval.AUTOMATIC
    windows: Annotated[
        list[MaintenanceWindow],
        kubernetes_only(
            "Times in which an update may restart pods. Default: at any time.", max_length=WINDOWS_MAX
        ),
    ] = []

    def is_open(self, now: float) -> bool:
        """Whether an update may restart pods at this time, in seconds since 1970."""
        return not self.windows or any(window.is_open(now) for window in self.windows)
