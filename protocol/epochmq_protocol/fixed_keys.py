"""Lists the keys that a process reads once, at its start. A running process rejects a change of them; the
operator restarts pods for them."""

from __future__ import annotations

_BROKER_NAMES = """
    adminSocketPath authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy authorizationWhitelist
    bindAddress brokerClusterName brokerIP1 brokerIP2 brokerId brokerName brokerRole clientIP
    compactionCqMappedFileSize compactionMappedFileSize dLegerGroup dLegerPeers dLegerSelfId
    enableCompaction enableControllerMode enableDLegerCommitLog enableLmq
    enableMultiDispatch enableSlaveActingMaster enabledAppendPropCRC
    externalListenPort externalTlsMode haListenPort
    initAuthenticationUser innerClientAuthenticationCredentials joinDLedgerGroup listenPort
    mappedFileSizeCommitLog
    mappedFileSizeConsumeQueue mappedFileSizeTimerLog maxHashSlotNum maxIndexNum messageDelayLevel
    preferredLeaderId readOnlyCommitLogStorePaths scrubFirstDelayMs
    serverChannelMaxIdleTimeSeconds storePathCommitLog storePathDLedgerCommitLog storePathRootDir
    timerPrecisionMs timerWheelEnable tlsServerCertPath tlsServerKeyPath tlsServerMode
    tlsServerNeedClientAuth tlsServerTrustCertPath
"""

FIXED_BROKER_KEYS: frozenset[str] = frozenset(_BROKER_NAMES.split())
"""The keys that are read once, at the start. A running broker rejects a change of them (`LiveConfig.update`).
RocketMQ accepts a change, shows the new value and continues with the old one."""

DLEDGER_MEMBER_KEYS: frozenset[str] = frozenset({"dLegerPeers", "joinDLedgerGroup"})
"""The fixed keys that name the members of a DLedger group, and count only until the group's log names them. A
running broker needs no other values: it keeps its own when it applies a whole file."""
