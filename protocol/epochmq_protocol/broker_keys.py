"""Says which keys of a broker may change while it runs, and which of RocketMQ's keys have no effect.

The names are those of BrokerConfig, BrokerIdentity, MessageStoreConfig, NettyServerConfig, NettyClientConfig
and AuthConfig (5.3.3), which the Java broker fills from one file. A running broker rejects a change of a
fixed key; the operator restarts pods for it."""

from __future__ import annotations

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

_FALSE = ("false", "")
_OTHER_REPLICATION = "this broker replicates through the HA service only"

REJECTED_UNLESS: dict[str, tuple[tuple[str, ...], str]] = {
    "duplicationEnable": (_FALSE, _OTHER_REPLICATION),
    "storeType": (("default", ""), "this broker has the file store only"),
    "messageStorePlugIn": (("",), "store plug-ins are not supported"),
    "fetchNamesrvAddrByAddressServer": (_FALSE, "set the nameservers in namesrvAddr"),
}
"""key → (the accepted values, which change nothing; why others are rejected)."""

_NAMES_WITHOUT_EFFECT = """
    accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
    appendAckAsync appendCkAsync asyncSendEnable authConfigPath
    autoDeleteUnusedStats
    autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerConfigPath
    channelNotActiveInterval cleanOfflineBrokerInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManagerThreadPoolQueueCapacity
    clientManageThreadPoolNums clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterName
    commercialBaseCount commercialSizePerMsg
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
    compactionThreadNum
    compressedRegister configManagerVersion configName connectTimeoutMillis
    consumerFallbehindThreshold consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
    correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval debugLockEnable
    disableCallbackExecutor disableConsumeIfConsumerReadSlowly
    disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded dispatchCqCacheNum dispatchCqThreads
    dispatchFromSenderThread enableAsyncReput enableBatchPush
    enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently
    enableCleanExpiredOffset enableDetailStat
    enableFastChannelEventProcess enableNetWorkFlowControl
    enableNotifyBeforePopCalculateLag
    enablePopLog enableReconnectForGoAway
    enableRocksDBLog enableScheduleAsyncDeliver enableShutdownGracefully
    enableSingleTopicRegister enableSplitRegistration
    endTransactionPoolQueueCapacity
    fastFailIfNoBufferInStorePool fetchNamesrvAddrInterval
    flushCommitLogTimed flushConsumerOffsetHistoryInterval flushLeastPagesWhenWarmMapedFile
    heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode
    isBrokerContainer isInBrokerContainer isolateLogEnable
    isScanAvailableNameSrv litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
    logicalDiskSpaceCleanForciblyThreshold logicQueueForceSwapMapInterval
    logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    mappedFileSwapEnable maxAsyncPutMessageRequests
    maxBatchDeleteFilesNum maxChecksumRange
    maxReconnectIntervalTimeSeconds
    maxRecoveryCommitlogFiles maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength
    memTableFlushIntervalMs metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort
    popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
    popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead
    printChannelGroups printChannelGroupsMinNum processReplyMessageThreadPoolNums
    pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater
    putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity readUnCommitted
    realTimeNotifyConsumerChange realTimePersistRocksDBConfig recheckReputOffsetFromCq recoverConcurrently
    recoverThreadPoolNums replicasPerDiskPartition replyThreadPoolQueueCapacity
    reviveMaxSlow reviveScanTime
    rmqAddressServerDomain rmqAddressServerSubGroup rocketmqHome rocksdbCompressionType
    rocksdbCQDoubleWriteEnable rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds
    socksProxyConfig spinLockCollisionRetreatOptimalDegree
    splitRegistrationSize statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheMaxNum statRocksDBCQIntervalSec
    timerCheckMetricsWhen
    timerEnableCheckMetrics timerEnableDisruptor
    timerEnableRetryUntilSuccess timerGetMessageThreadNum timerInterceptDelayLevel
    timerMetricSmallThreshold timerProgressLogIntervalMs
    timerPutMessageThreadNum timerSkipUnknownError
    timerWarmEnable topicQueueLockNum
    transferMsgByHeap transientStorePoolEnable transientStorePoolSize travelCqFileNumWhenGetMessage
    useABSLock useEpollNativeSelector
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond useReentrantLockWhenPutMessage
    useStaticSubscription wakeCommitWhenPutMessage
    wakeFlushWhenPutMessage writeBufferHighWaterMark writeBufferLowWaterMark
"""

WITHOUT_EFFECT: frozenset[str] = frozenset(_NAMES_WITHOUT_EFFECT.split())
"""Accepted and shown by GET_BROKER_CONFIG. They concern things that this broker does not have: thread pools,
caches, exporters. Requests for these are rejected."""


def is_fixed(key: str) -> bool:
    """Whether a broker reads this key once, at the start. RocketMQ accepts a change of such a key, shows the
    new value and continues with the old one."""
    return key not in CHANGEABLE_BROKER_KEYS and key not in WITHOUT_EFFECT and key not in REJECTED_UNLESS
