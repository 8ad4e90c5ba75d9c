"""The second floor: a group's pods (`epochmq_operator.render`), put into Kubernetes places, as the objects
that Kubernetes is given. Pure throughout.

    manifests(group, quorum, settings)   # all objects of a group, in the order in which they are applied
    pods(group, quorum, settings)        # its pods as plain data, with the addresses they have there
    differences(desired, observed)       # what of one object is otherwise than we want it
    settled(desired, observed)           # as much of it as the API server lets us change
"""

from epochmq_operator.manifests.differences import differences
from epochmq_operator.manifests.group import manifests, pods
from epochmq_operator.manifests.names import (
    KINDS_MADE,
    MANAGED_BY,
    MANAGER,
    admin_address,
    belongings,
    claim_name,
    headless_service,
    nameserver_service,
    replica_service,
    selector,
    stateful_set,
)
from epochmq_operator.manifests.settings import Manifest, Settings
from epochmq_operator.manifests.settled import settled

__all__ = [
    "KINDS_MADE",
    "MANAGED_BY",
    "MANAGER",
    "Manifest",
    "Settings",
    "admin_address",
    "belongings",
    "claim_name",
    "differences",
    "headless_service",
    "manifests",
    "nameserver_service",
    "pods",
    "replica_service",
    "selector",
    "settled",
    "stateful_set",
]
