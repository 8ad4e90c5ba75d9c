"""Defines the model of `BrokerGroupBackup` and its validation rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from epochmq_operator.resources.backup_location import (
    EXPECTED_OF_LOCATIONS,
    LOCATION_RULES,
    BackupLocation,
)
from epochmq_operator.resources.documents import DocumentModel, enum_by_value
from epochmq_operator.resources.model import (
    DNS_LABEL,
    NAME_LENGTH_MAX,
    DnsLabel,
    ObjectMetadata,
)
from epochmq_operator.resources.pod_values import (
    TOLERATIONS_MAX,
    PullPolicy,
    Toleration,
)
from epochmq_operator.resources.rules import ValidationRule
from epochmq_operator.resources.update_policy import SCHEDULE, SCHEDULE_LENGTH_MAX, checked_schedule

BACKUP_KIND = "BrokerGroupBackup"
HISTORY_MAX = 100
RETENTION_MAX = 10_000


class BrokerGroupBackupSpec(BackupLocation):
    """Which group is backed up, where to, and when."""

    broker_group: Annotated[
        DnsLabel, Field(max_length=NAME_LENGTH_MAX, description="Name of the BrokerGroup. Immutable.")
    ]
    schedule: Annotated[
        Annotated[
            str, Field(max_length=SCHEDULE_LENGTH_MAX, pattern=SCHEDULE), AfterValidator(checked_schedule)
        ]
        | None,
        Field(
            description="Cron schedule in UTC: minute, hour, day, month, day of the week. Without it one "
            "backup is taken. Backups do not overlap: one that is due while another runs is skipped."
        ),
    ] = None
    retention: Annotated[
        int | None,
        Field(
            ge=1,
            le=RETENTION_MAX,
            description="Number of backups that remain at the URL: after each backup older ones are deleted. "
            "Default: all remain.",
        ),
    ] = None
    suspend: Annotated[
        bool, Field(description="Start no backup. A backup that already runs is completed.")
    ] = False
    history_limit: Annotated[
        int, Field(ge=1, le=HISTORY_MAX, description="Number of runs that the status keeps.")
    ] = 10
    image_pull_policy: Annotated[
        PullPolicy, enum_by_value(PullPolicy), Field(description="When a node pulls the image.")
    ] = PullPolicy.IF_NOT_PRESENT
    tolerations: Annotated[
        list[Toleration],
        Field(
            default_factory=list,
            description="Tolerations of the pod, besides those of the group.",
            max_length=TOLERATIONS_MAX,
        ),
    ]


class BrokerGroupBackup(DocumentModel):
    """A backup of a broker group while it serves, once or on a schedule."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["BrokerGroupBackup"]
    metadata: ObjectMetadata
    spec: BrokerGroupBackupSpec
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def name(self) -> str:
        """The backup's name, unique in its namespace."""
        return self.metadata.name


BACKUP_RULES: tuple[ValidationRule, ...] = (
    ValidationRule(
        "",
        f"self.metadata.name.size() <= {NAME_LENGTH_MAX}",
        f"choose a name of at most {NAME_LENGTH_MAX} characters: pod names are derived from it",
    ),
    ValidationRule(
        "",
        f"self.metadata.name.matches('{DNS_LABEL}')",
        "choose a name of lower-case letters, digits and '-' that begins with a letter",
    ),
    ValidationRule(
        "spec",
        "self.brokerGroup == oldSelf.brokerGroup",
        "brokerGroup cannot change, because a URL has backups of one group: restore it, or create a new "
        "backup",
    ),
    *(ValidationRule("spec", cel, message) for cel, message in LOCATION_RULES),
)

EXPECTED_OF_BACKUPS: Mapping[str, str] = {
    "spec.brokerGroup": "the name of a BrokerGroup",
    **{f"spec.{name}": text for name, text in EXPECTED_OF_LOCATIONS.items()},
    "spec.schedule": "five fields of cron, such as 0 3 * * *",
    "spec.retention": f"a whole number from 1 to {RETENTION_MAX}",
    "spec.suspend": "true or false",
    "spec.historyLimit": f"a whole number from 1 to {HISTORY_MAX}",
    "spec.tolerations": "a list of tolerations",
}
"""What each field accepts, in words."""
