"""RocketMQ's configuration keys that `spec.config` must not set, and what each follows from instead."""

from __future__ import annotations

from collections.abc import Mapping

STORE_PATH = "storePath"
STORE_PATHS = (
    "storePathBrokerIdentity",
    "storePathCommitLog",
    "storePathConsumerQueue",
    "storePathDLedgerCommitLog",
    "storePathEpochFile",
    "storePathIndex",
    "storePathRootDir",
)
"""RocketMQ's keys that begin so. Kubernetes is told of these; what else begins so, the loader refuses."""
VOLUMES = "the pod's volumes"

OPERATOR_OWNED_KEYS: Mapping[str, str] = {
    "namesrvAddr": "the addresses of the group's nameservers",
    "fetchNamesrvAddrByAddressServer": "the addresses of the group's nameservers",
    "fetchNameSrvAddrByDnsLookup": "the addresses of the group's nameservers",
    "controllerAddr": "the addresses of the group's controllers",
    "fetchControllerAddrByDnsLookup": "the addresses of the group's controllers",
    "enableControllerMode": "how the group's replicas elect a master",
    "enableDLegerCommitLog": "how the group's replicas elect a master",
    "minInSyncReplicas": "spec.minInSyncReplicas",
    "brokerName": "spec.brokerName",
    "brokerClusterName": "spec.cluster",
    "brokerId": "the replica's identity",
    "brokerRole": "the replica's role",
    "brokerIP1": "the pod's address",
    "brokerIP2": "the pod's address",
    "bindAddress": "the pod's address",
    "clientIP": "the pod's address",
    "haMasterAddress": "the master's address",
    "listenPort": "the pod's ports",
    "haListenPort": "the pod's ports",
    "adminSocketPath": "the pod's admin sidecar",
    "rocketmqHome": VOLUMES,
    "brokerConfigPath": "the pod's configuration files",
    "isInBrokerContainer": "one broker a pod",
}
"""Of a broker. Every key that begins with `storePath` is owned too: it follows from the pod's volumes."""

CONTROLLER_OWNED_KEYS: Mapping[str, str] = {
    "controllerType": "how controllers agree",
    "controllerDLegerGroup": "the group's name",
    "controllerDLegerPeers": "the addresses of the group's pods",
    "controllerDLegerSelfId": "the pod's place in the group",
    "controllerStorePath": VOLUMES,
    "mappedFileSize": VOLUMES,
    "kvConfigPath": VOLUMES,
    "rocketmqHome": VOLUMES,
    "configStorePath": "the pod's configuration files",
    "bindAddress": "the pod's address",
    "controllerBindAddress": "the pod's address",
    "listenPort": "the pod's ports",
    "adminSocketPath": "the pod's admin sidecar",
    "enableControllerInNamesrv": "spec.nameserver.embedded",
}
"""Of a controller, which refuses a log whose files have another size than `mappedFileSize`."""


def key_owner(key: str) -> str | None:
    """What a broker's configuration key follows from when the operator owns it, else None."""
    return VOLUMES if key.startswith(STORE_PATH) else OPERATOR_OWNED_KEYS.get(key)
