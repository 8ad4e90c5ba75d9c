"""Defines the model of `BrokerGroupAudit` and its validation rules."""

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
    LABELS_MAX,
    TOLERATIONS_MAX,
    DnsName,
    Label,
    LabelKey,
    PullPolicy,
    Toleration,
)
from epochmq_operator.resources.rules import ValidationRule
from epochmq_operator.resources.update_policy import SCHEDULE, SCHEDULE_LENGTH_MAX, checked_schedule

AUDIT_KIND = "BrokerGroupAudit"
CPU = r"^[1-9][0-9]*m?$"
MEMORY = r"^[1-9][0-9]{0,5}(Mi|Gi)$"
EXECUTORS_MAX = 32
CORES_MAX = 16
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 60, 7 * 24 * 3600
HISTORY_MAX = 20


Memory = Annotated[str, Field(max_length=10, pattern=MEMORY)]


class ExecutorsSpec(DocumentModel):
    """The Spark executors, which read the volumes."""

    instances: Annotated[int, Field(ge=1, le=EXECUTORS_MAX, description="Number of executors.")] = 2
    cores: Annotated[
        int, Field(ge=1, le=CORES_MAX, description="Tasks that each executor runs at a time.")
    ] = 1
    cpu_request: Annotated[
        str,
        Field(
            max_length=10,
            pattern=CPU,
            description="CPU request of each executor. Brokers with larger requests get CPU time first.",
        ),
    ] = "20m"
    memory: Annotated[Memory, Field(description="Java heap of each executor.")] = "512Mi"
    memory_overhead: Annotated[
        Memory, Field(description="Memory of each executor beside the heap: Python.")
    ] = "1Gi"


class DriverSpec(DocumentModel):
    """The Spark driver, which compares what the executors read."""

    memory: Annotated[Memory, Field(description="Java heap of the driver.")] = "1Gi"
    memory_overhead: Annotated[Memory, Field(description="Memory of the driver beside the heap: Python.")] = (
        "512Mi"
    )


class BrokerGroupAuditSpec(DocumentModel):
    """Which group is audited, when, and with which resources."""

    broker_group: Annotated[
        DnsLabel, Field(max_length=NAME_LENGTH_MAX, description="Name of the BrokerGroup. Immutable.")
    ]
    schedule: Annotated[
        Annotated[
            str, Field(max_length=SCHEDULE_LENGTH_MAX, pattern=SCHEDULE), AfterValidator(checked_schedule)
        ]
        | None,
        Field(
            description="Cron schedule in UTC: minute, hour, day, month, day of the week. Without it the "
            "group is audited once. Audits do not overlap: one that is due while another runs is skipped."
        ),
    ] = None
    suspend: Annotated[
        bool, Field(description="Start no audit. An audit that already runs is completed.")
    ] = False
    timeout_seconds: Annotated[
        int,
        Field(ge=TIMEOUT_S_MIN, le=TIMEOUT_S_MAX, description="Time limit of an audit."),
    ] = 3600
    history_limit: Annotated[
        int, Field(ge=1, le=HISTORY_MAX, description="Number of audits whose verdicts and reports are kept.")
    ] = 3
    volume_snapshot_class_name: Annotated[
        DnsName | None,
        Field(
            max_length=253,
            description="VolumeSnapshotClass: the audit reads clones of snapshots. Default: the audit reads "
            "the volumes themselves, on their nodes.",
        ),
    ] = None
    executors: Annotated[ExecutorsSpec, Field(description="The Spark executors, which read the volumes.")] = (
        ExecutorsSpec()
    )
    driver: Annotated[DriverSpec, Field(description="The Spark driver, which compares.")] = DriverSpec()
    image: Annotated[
        str | None,
        Field(
            description="Image of the pods. Default: the operator's auditImage.",
            max_length=500,
            pattern=IMAGE,
        ),
    ] = None
    image_pull_policy: Annotated[
        PullPolicy, enum_by_value(PullPolicy), Field(description="When a node pulls the image.")
    ] = PullPolicy.IF_NOT_PRESENT
    node_selector: Annotated[
        dict[LabelKey, Label],
        Field(
            default_factory=dict,
            description="Labels that the nodes of driver and executors must have.",
            max_length=LABELS_MAX,
        ),
    ]
    tolerations: Annotated[
        list[Toleration],
        Field(
            default_factory=list,
            description="Tolerations of the pods.",
            max_length=TOLERATIONS_MAX,
        ),
    ]


class BrokerGroupAudit(DocumentModel):
    """An audit of a broker group's volumes by Spark, once or on a schedule."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["BrokerGroupAudit"]
    metadata: ObjectMetadata
    spec: BrokerGroupAuditSpec
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def name(self) -> str:
        """The audit's name, unique in its namespace."""
        return self.metadata.name


AUDIT_RULES: tuple[ValidationRule, ...] = (
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
        "brokerGroup cannot change, because verdicts and reports belong to one group: restore it, or create "
        "a new audit",
    ),
)

EXPECTED_OF_AUDITS: Mapping[str, str] = {
    "spec.brokerGroup": "the name of a BrokerGroup",
    "spec.schedule": "five fields of cron, such as 0 3 * * *",
    "spec.suspend": "true or false",
    "spec.timeoutSeconds": f"a whole number from {TIMEOUT_S_MIN} to {TIMEOUT_S_MAX}",
    "spec.historyLimit": f"a whole number from 1 to {HISTORY_MAX}",
    "spec.volumeSnapshotClassName": "the name of a VolumeSnapshotClass",
    "spec.executors.instances": f"a whole number from 1 to {EXECUTORS_MAX}",
    "spec.executors.cores": f"a whole number from 1 to {CORES_MAX}",
    "spec.executors.cpuRequest": "a quantity, such as 500m",
    "spec.executors.memory": "a size, such as 512Mi",
    "spec.executors.memoryOverhead": "a size, such as 512Mi",
    "spec.driver.memory": "a size, such as 1Gi",
    "spec.driver.memoryOverhead": "a size, such as 1Gi",
    "spec.image": "the name of an image",
    "spec.nodeSelector": "a mapping of labels to values",
    "spec.tolerations": "a list of tolerations",
}
"""What each field accepts, in words."""
