"""Lists the keys of a broker that may change while it runs, and those that it reads once, at its start. A
running broker rejects a change of the latter; the operator restarts pods for them."""

from __future__ import annotations

_BROKER_NAMES = """
    aclStrict adminSocketPath allowUnauthenticatedMembers authSecretsPath
    authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy authorizationWhitelist
    bindAddress brokerClusterName brokerIP1 brokerIP2 brokerId brokerName brokerRole clientIP
    compactionCqMappedFileSize compactionMappedFileSize dLegerGroup dLegerPeers dLegerSelfId
    enableCompaction enableControllerMode enableDLegerCommitLog enableLmq
    enableMultiDispatch enableSlaveActingMaster enabledAppendPropCRC
    externalListenPort externalTlsMode frameTimeoutMillis haListenPort
    initAuthenticationUser innerClientAuthenticationCredentials joinDLedgerGroup listenPort
    mappedFileSizeCommitLog
    mappedFileSizeConsumeQueue mappedFileSizeTimerLog
    maxConnectionsPerAddress maxHashSlotNum maxHeaderSize maxIndexNum maxNewConnectionsPerAddress
    maxReceivedBytes memberSecretPath messageDelayLevel
    preferredLeaderId proxyProtocolFrom readOnlyCommitLogStorePaths scrubFirstDelayMs
    serverChannelMaxIdleTimeSeconds storePathCommitLog storePathBrokerIdentity
    storePathDLedgerCommitLog storePathEpochFile storePathRootDir
    timerPrecisionMs timerWheelEnable tlsServerCertPath tlsServerKeyPath tlsServerMode
    tlsServerNeedClientAuth tlsServerTrustCertPath
"""

FIXED_BROKER_KEYS: frozenset[str] = frozenset(_BROKER_NAMES.split())
"""The keys that are read once, at the start. A running broker rejects a change of them (`LiveConfig.update`).
RocketMQ accepts a change, shows the new value and continues with the old one."""

_CHANGEABLE_NAMES = """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio aclEnable allAckInSyncStateSet
    allowRecallWhenBrokerNotWriteable asyncLearner autoCreateSubscriptionGroup autoCreateTopicEnable
    brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval brokerNotActiveTimeoutMillis
    brokerPermission brokerTopicEnable cgColdReadThreshold channelExpiredTimeout checkCRCOnRecover
    checkSyncStateSetPeriod cleanFileForciblyEnable cleanResourceInterval clearRetryTopicWhenDeleteTopic
    clusterTopicEnable coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable
    compactionScheduleInternal compatibleWithOldNameSrv configBlackList consumerOffsetUpdateVersionStep
    controllerAddr controllerHeartBeatTimeoutMills dataReadAheadEnable defaultMessageRequestMode
    defaultPopShareQueueNum defaultQueryMaxNum defaultTopicQueueNums delayOffsetUpdateVersionStep
    deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen
    destroyMapedFileIntervalForcibly diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio enableAutoInSyncReplicas enableCalcFilterBitMap enableConsumeQueueExt
    enableCreateSysGroup enableLmqStats enableMixedMessageType enableNotifyAfterPopOrderLockRelease
    enablePopBatchAck enablePopBufferMerge enablePopMessageThreshold enablePropertyFilter
    enableRegisterProducer enableRemoteEscape enableRetryTopicV2 enableScheduleMessageStats
    enableSkipLongAwaitingAck estimateAccumulation expectConsumerNumUseFilter externalIP externalPort
    fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup fileReservedTime filterDataCleanTimeSpan
    filterSupportRetry flushCommitLogLeastPages flushCommitLogThoroughInterval
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushConsumerOffsetInterval
    flushDelayOffsetInterval flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
    forceRegister forceVerifyPropCRC forwardTimeout globalColdReadThreshold haFlowControlEnable
    haHousekeepingInterval haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup
    haSendHeartbeatInterval haTransferBatchSize initPopOffsetByCheckMsgInMem inSyncReplicas
    litePullMessageEnable loadBalancePollNameServerInterval lockInStrictMode longPollingEnable
    mappedFileSizeConsumeQueueExt mapperFileSizeBatchConsumeQueue maxErrorRateOfBloomFilter
    maxConsumeQueueScan maxFilterMessageSize maxGroupsPerHeartbeat maxHaTransferByteInSecond
    maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch maxOffsetMapSize maxPopPollingSize maxQueuesPerLock
    maxSubscriptionsPerHeartbeat maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory messageIndexEnable
    messageIndexSafe migrateAuthFromV1Enabled minInSyncReplicas msgTraceTopicName namesrvAddr
    notifyConsumerIdsChangedEnable offsetCheckInSlave osPageCacheBusyTimeOutMills popCkMaxBufferSize
    popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popFromRetryProbability
    popFromRetryProbabilityForPriority popInflightMessageThreshold popLongPollingForceNotifyInterval
    popPollingMapSize popPollingSize popResponseReturnActualRetryTopic priorityOrderAsc recallMessageEnable
    redeleteHangedFileInterval regionId
    registerBrokerTimeoutMills registerNameServerPeriod rejectPullConsumerEnable rejectSystemTopicSends
    rejectTransactionMessage retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval
    reviveQueueNum sampleCountThreshold sampleSteps scrubBytesPerSecond scrubPassIntervalMs
    sendHeartbeatTimeoutMillis
    serverLoadBalancerEnable shortPollingTimeMills skipPreOnline skipWhenCKRePutReachMaxTimes
    slaveReadEnable slaveTimeout startAcceptSendRequestTimeStamp
    statefulAuthenticationCacheExpiredSecond statefulAuthorizationCacheExpiredSecond
    storeReplyMessageEnable subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFlushTimeout syncFromLastFile
    syncMasterFlushOffsetWhenStartup timerColdDataCheckIntervalMs timerCongestNumEachSlot
    timerFlushIntervalMs timerMaxDelaySec timerRollWindowSlot timerStopDequeue timerStopEnqueue
    totalReplicas traceOn traceTopicEnable transactionCheckInterval transactionCheckMax
    transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize transactionTimeOut
    updateNameServerAddrPeriod usePIDColdCtrStrategy useServerSideResetOffset
    validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue warmMapedFileEnable
"""

CHANGEABLE_BROKER_KEYS: frozenset[str] = frozenset(_CHANGEABLE_NAMES.split())
"""The keys that may change while a broker runs. Any other key of a broker is fixed, a new one too. Keys that
name a file of the broker are never among these: whoever may change settings could let the broker read or
write any file."""

DLEDGER_MEMBER_KEYS: frozenset[str] = frozenset({"dLegerPeers", "joinDLedgerGroup"})
"""The fixed keys that name the members of a DLedger group, and count only until the group's log names them. A
running broker needs no other values: it keeps its own when it applies a whole file."""
