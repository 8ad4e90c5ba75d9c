"""Defines the model of `BrokerGroupBackup` and its validation rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from epochmq_operator.resources.documents import DocumentModel, enum_by_value
from epochmq_operator.resources.model import (
    DNS_LABEL,
    NAME_LENGTH_MAX,
    DnsLabel,
    ObjectMetadata,
)
from epochmq_operator.resources.pod_values import (
    IMAGE,
    TOLERATIONS_MAX,
    DnsName,
    PullPolicy,
    Toleration,
)
from epochmq_operator.resources.rules import ValidationRule
from epochmq_operator.resources.update_policy import SCHEDULE, SCHEDULE_LENGTH_MAX, checked_schedule

BACKUP_KIND = "BrokerGroupBackup"
CLAIM_DIRECTORY = "/backups"
"""Where the pod of a backup mounts the claim of `spec.claimName`."""
CLAIM_URL = f"file://{CLAIM_DIRECTORY}"
URL = r"^(s3|gs|abfs|file)://[^\s]+$"
URL_LENGTH_MAX = 1000
MEMORY = r"^[1-9][0-9]{0,5}(Mi|Gi)$"
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 60, 7 * 24 * 3600
HISTORY_MAX = 100
RETENTION_MAX = 10_000


class BrokerGroupBackupSpec(DocumentModel):
    """Which group is backed up, where to, and when."""

    broker_group: Annotated[
        DnsLabel, Field(max_length=NAME_LENGTH_MAX, description="Name of the BrokerGroup. Immutable.")
    ]
    url: Annotated[
        str,
        Field(
            max_length=URL_LENGTH_MAX,
            pattern=URL,
            description="Where the backups are, as on the command line. Each group needs a URL of its own. "
            "Credentials belong into a Secret, not into the URL.",
        ),
    ]
    credentials_secret: Annotated[
        DnsName | None,
        Field(
            max_length=253,
            description="Secret of the namespace whose keys become environment variables of the pod, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. The operator does not read it.",
        ),
    ] = None
    claim_name: Annotated[
        DnsName | None,
        Field(
            max_length=253,
            description=f"PersistentVolumeClaim for backups on a volume, such as NFS. It is mounted at "
            f"{CLAIM_DIRECTORY}, so the URL begins with {CLAIM_URL}/.",
        ),
    ] = None
    service_account_name: Annotated[
        DnsName | None,
        Field(
            max_length=253,
            description="ServiceAccount of the pod, for clouds that give it the rights for the storage. The "
            "pod gets no token for the API server.",
        ),
    ] = None
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
    timeout_seconds: Annotated[
        int, Field(ge=TIMEOUT_S_MIN, le=TIMEOUT_S_MAX, description="Time limit of a backup.")
    ] = 21600
    history_limit: Annotated[
        int, Field(ge=1, le=HISTORY_MAX, description="Number of runs that the status keeps.")
    ] = 10
    memory: Annotated[
        str,
        Field(
            max_length=10,
            pattern=MEMORY,
            description="Memory limit of the pod. It includes the page cache of the files that it reads.",
        ),
    ] = "1Gi"
    image: Annotated[
        str | None,
        Field(
            description="Image of the pod, with EpochMQ and Arrow. Default: the operator's auditImage.",
            max_length=500,
            pattern=IMAGE,
        ),
    ] = None
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
    ValidationRule(
        "spec",
        f"has(self.claimName) == self.url.startsWith('{CLAIM_URL}/')",
        f"a url that begins with {CLAIM_URL}/ and claimName belong together: give both, or another url",
    ),
    ValidationRule(
        "spec",
        f"!self.url.startsWith('file:') || self.url.startsWith('{CLAIM_URL}/')",
        f"a url of files begins with {CLAIM_URL}/, where the volume of claimName is mounted",
    ),
    ValidationRule(
        "spec",
        r"!self.url.matches('^[a-z0-9]+://[^/?]*@')",
        "put credentials into a Secret, and name it in credentialsSecret: everyone who may read the resource "
        "reads its url",
    ),
)

EXPECTED_OF_BACKUPS: Mapping[str, str] = {
    "spec.brokerGroup": "the name of a BrokerGroup",
    "spec.url": "s3://BUCKET/PREFIX?OPTIONS, gs://…, abfs://… or file:///backups/…",
    "spec.credentialsSecret": "the name of a Secret",
    "spec.claimName": "the name of a PersistentVolumeClaim",
    "spec.serviceAccountName": "the name of a ServiceAccount",
    "spec.schedule": "five fields of cron, such as 0 3 * * *",
    "spec.retention": f"a whole number from 1 to {RETENTION_MAX}",
    "spec.suspend": "true or false",
    "spec.timeoutSeconds": f"a whole number from {TIMEOUT_S_MIN} to {TIMEOUT_S_MAX}",
    "spec.historyLimit": f"a whole number from 1 to {HISTORY_MAX}",
    "spec.memory": "a size, such as 512Mi",
    "spec.image": "the name of an image",
    "spec.tolerations": "a list of tolerations",
}
"""What each field accepts, in words."""
