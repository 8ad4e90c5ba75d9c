"""The resources of the API group `epochmq.io/v1alpha1`.

- `model`: the BrokerGroup and ControllerGroup models; `audit`: the BrokerGroupAudit model; `entities`: the
  Topic and User models.
- `owned_keys`: RocketMQ configuration keys that only the operator may set.
- `rules`: validation rules that span fields or compare a resource with its earlier state.
- `loader`: reads YAML text into these models.
- `cron`: cron schedules; `quantities`: Kubernetes quantities.

The CustomResourceDefinitions are generated from the same models (`epochmq_operator.crd`)."""

from epochmq_operator.resources.loader import (
    DOCUMENT_COUNT_MAX,
    NESTING_MAX,
    UNSUPPORTED_KINDS,
    DocumentFault,
    ResourceError,
    Resources,
    load_resources,
    show_value,
)
from epochmq_operator.resources.member_mode import MemberMode
from epochmq_operator.resources.model import (
    API_GROUP,
    API_VERSION,
    BROKER_NAME_LENGTH_MAX,
    CONTROLLER_COUNTS,
    DLEDGER_COUNTS,
    KINDS,
    NAME_LENGTH_MAX,
    REPLICAS_MAX,
    VERSION,
    AdminSpec,
    BrokerGroup,
    BrokerGroupSpec,
    ConfigValue,
    ControllerGroup,
    ControllerGroupSpec,
    GroupMode,
    GroupResource,
    NameserverSpec,
    ObjectMetadata,
    Retention,
    StorageSpec,
    WorkloadSpec,
    is_raft_group,
    with_member_count,
)
from epochmq_operator.resources.owned_keys import CONTROLLER_OWNED_KEYS, OPERATOR_OWNED_KEYS, key_owner
from epochmq_operator.resources.pod_fields import PodFields
from epochmq_operator.resources.pod_values import ResourcesSpec, Spread, Toleration
from epochmq_operator.resources.rules import RULES, ValidationRule, rejected_changes

__all__ = [
    "API_GROUP",
    "API_VERSION",
    "BROKER_NAME_LENGTH_MAX",
    "CONTROLLER_COUNTS",
    "CONTROLLER_OWNED_KEYS",
    "DLEDGER_COUNTS",
    "DOCUMENT_COUNT_MAX",
    "KINDS",
    "NAME_LENGTH_MAX",
    "NESTING_MAX",
    "OPERATOR_OWNED_KEYS",
    "REPLICAS_MAX",
    "RULES",
    "UNSUPPORTED_KINDS",
    "VERSION",
    "AdminSpec",
    "BrokerGroup",
    "BrokerGroupSpec",
    "ConfigValue",
    "ControllerGroup",
    "ControllerGroupSpec",
    "DocumentFault",
    "GroupMode",
    "GroupResource",
    "MemberMode",
    "NameserverSpec",
    "ObjectMetadata",
    "PodFields",
    "ResourceError",
    "Resources",
    "ResourcesSpec",
    "Retention",
    "Spread",
    "StorageSpec",
    "Toleration",
    "ValidationRule",
    "WorkloadSpec",
    "is_raft_group",
    "key_owner",
    "load_resources",
    "rejected_changes",
    "show_value",
    "with_member_count",
]
