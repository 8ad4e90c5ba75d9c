"""Lists RocketMQ's configuration keys that `spec.config` must not set, each with what determines its value
instead."""

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
"""RocketMQ's keys with this prefix. The CRD names these keys; the loader rejects every key with the prefix.
"""
VOLUMES = "the pod's volumes"

OPERATOR_OWNED_KEYS: Mapping[str, str] = {
    "namesrvAddr": "the addresses of the group's nameservers",
    "fetchNamesrvAddrByAddressServer": "the addresses of the group's nameservers",
    "fetchNameSrvAddrByDnsLookup": "the addresses of the group's nameservers",
    "controllerAddr": "the addresses of the group's controllers",
    "fetchControllerAddrByDnsLookup": "the addresses of the group's controllers",
    "enableControllerMode": "how the group's replicas elect a master",
    "enableDLegerCommitLog": "how the group's replicas elect a master",
    "dLegerGroup": "spec.brokerName",
    "dLegerPeers": "the addresses of the group's pods",
    "dLegerSelfId": "the pod's place in the group",
    "joinDLedgerGroup": "whether the pod is new to its group",
    "enableSlaveActingMaster": "spec.actingMaster",
    "totalReplicas": "spec.replicas",
    "skipPreOnline": "how a returning master takes its group's tables back",
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
    "authSecretsPath": "spec.authSecret",
    "rocketmqHome": VOLUMES,
    "brokerConfigPath": "the pod's configuration files",
    "isInBrokerContainer": "one broker a pod",
}
"""The keys of a broker. Besides these, the operator owns every key that begins with `storePath`: its value
follows from the pod's volumes."""

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
"""The keys of a controller. `mappedFileSize` is among them because a controller rejects a log whose files
have another size."""


def key_owner(key: str) -> str | None:
    """What determines the value of a broker's configuration key if the operator owns the key, else None."""
    return VOLUMES if key.startswith(STORE_PATH) else OPERATOR_OWNED_KEYS.get(key)
