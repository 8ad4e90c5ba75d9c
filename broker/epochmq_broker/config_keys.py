"""Keys of the Java broker's configuration (5.3.3) that are no fields of `BrokerConfig`.

Source of the names: BrokerConfig, BrokerIdentity, MessageStoreConfig, NettyServerConfig, NettyClientConfig
and AuthConfig, which the Java broker fills from one file.
"""

from __future__ import annotations

_FALSE = ("false", "")
_NO_REPLICATION = "replication is not part of this broker yet"
_NO_ACCESS_CONTROL = "access control is not part of this broker, and pretending would be worse than refusing"

REJECTED_UNLESS: dict[str, tuple[tuple[str, ...], str]] = {
    "enableDLegerCommitLog": (_FALSE, _NO_REPLICATION),
    "duplicationEnable": (_FALSE, _NO_REPLICATION),
    "aclEnable": (_FALSE, _NO_ACCESS_CONTROL),
    "authenticationEnabled": (_FALSE, _NO_ACCESS_CONTROL),
    "authorizationEnabled": (_FALSE, _NO_ACCESS_CONTROL),
    "storeType": (("default", ""), "the store is the file store, RocksDB is not supported"),
    "enabledAppendPropCRC": (_FALSE, "records carry the body's checksum only"),
    "enableLmq": (_FALSE, "light message queues are not supported"),
    "enableMultiDispatch": (_FALSE, "light message queues are not supported"),
    "readOnlyCommitLogStorePaths": (("",), "the commit log is one directory"),
    "messageStorePlugIn": (("",), "there are no store plug-ins"),
    "fetchNamesrvAddrByAddressServer": (_FALSE, "nameservers are given by namesrvAddr"),
    "fetchNameSrvAddrByDnsLookup": (_FALSE, "nameservers are given by namesrvAddr"),
    "enablePropertyFilter": (_FALSE, "SQL92 filters are not part of this broker yet"),
    "recallMessageEnable": (_FALSE, "timer messages are not part of this broker yet"),
}
"""key → (the values that change nothing, why any other is refused)."""

_NAMES = """
    accessMessageInMemoryHotRatio accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allowRecallWhenBrokerNotWriteable
    appendAckAsync appendCkAsync asyncSendEnable authConfigPath authenticationMetadataProvider
    authenticationProvider authenticationStrategy authenticationWhitelist authorizationMetadataProvider
    authorizationProvider authorizationStrategy authorizationWhitelist autoDeleteUnusedStats
    autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerConfigPath brokerFastFailureEnable cgColdReadThreshold
    channelNotActiveInterval cleanOfflineBrokerInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManagerThreadPoolQueueCapacity
    clientManageThreadPoolNums clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterName coldCtrStrategyEnable
    coldDataFlowControlEnable coldDataScanEnable commercialBaseCount commercialSizePerMsg
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
    compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
    compatibleWithOldNameSrv compressedRegister configManagerVersion configName connectTimeoutMillis
    consumerFallbehindThreshold consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
    correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dataReadAheadEnable debugLockEnable defaultMessageRequestMode
    defaultPopShareQueueNum disableCallbackExecutor disableConsumeIfConsumerReadSlowly
    disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded dispatchCqCacheNum dispatchCqThreads
    dispatchFromSenderThread dLegerGroup dLegerPeers dLegerSelfId enableAsyncReput enableBatchPush
    enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap
    enableCleanExpiredOffset enableCompaction enableConsumeQueueExt enableDetailStat
    enableFastChannelEventProcess enableLmqStats enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enableReconnectForGoAway enableRemoteEscape
    enableRetryTopicV2 enableRocksDBLog enableScheduleAsyncDeliver enableShutdownGracefully
    enableSingleTopicRegister enableSkipLongAwaitingAck enableSplitRegistration
    endTransactionPoolQueueCapacity estimateAccumulation expectConsumerNumUseFilter
    fastFailIfNoBufferInStorePool fetchNamesrvAddrInterval filterDataCleanTimeSpan filterSupportRetry
    flushCommitLogTimed flushConsumerOffsetHistoryInterval flushLeastPagesWhenWarmMapedFile
    forceVerifyPropCRC forwardTimeout globalColdReadThreshold heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode initAuthenticationUser initPopOffsetByCheckMsgInMem
    innerClientAuthenticationCredentials isBrokerContainer isInBrokerContainer isolateLogEnable
    isScanAvailableNameSrv litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
    lockInStrictMode logicalDiskSpaceCleanForciblyThreshold logicQueueForceSwapMapInterval
    logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSizeConsumeQueueExt
    mappedFileSizeTimerLog mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests
    maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxErrorRateOfBloomFilter
    maxLmqConsumeQueueNum maxOffsetMapSize maxPopPollingSize maxReconnectIntervalTimeSeconds
    maxRecoveryCommitlogFiles maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength
    memTableFlushIntervalMs metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled popCkMaxBufferSize
    popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
    popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapSize popPollingSize
    popResponseReturnActualRetryTopic popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead
    preferredLeaderId printChannelGroups printChannelGroupsMinNum processReplyMessageThreadPoolNums
    pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater
    putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity readUnCommitted
    realTimeNotifyConsumerChange realTimePersistRocksDBConfig recheckReputOffsetFromCq recoverConcurrently
    recoverThreadPoolNums replicasPerDiskPartition replyThreadPoolQueueCapacity
    retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveScanTime
    rmqAddressServerDomain rmqAddressServerSubGroup rocketmqHome rocksdbCompressionType
    rocksdbCQDoubleWriteEnable rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold
    sampleSteps scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverLoadBalancerEnable serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds skipPreOnline
    skipWhenCKRePutReachMaxTimes socksProxyConfig spinLockCollisionRetreatOptimalDegree
    splitRegistrationSize statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum statRocksDBCQIntervalSec
    storePathDLedgerCommitLog syncBrokerMemberGroupPeriod
    syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen
    timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics timerEnableDisruptor
    timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel
    timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs
    timerPutMessageThreadNum timerRollWindowSlot timerSkipUnknownError timerStopDequeue timerStopEnqueue
    timerWarmEnable topicQueueLockNum transactionCheckInterval transactionCheckMax
    transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize transactionTimeOut
    transferMsgByHeap transientStorePoolEnable transientStorePoolSize travelCqFileNumWhenGetMessage
    updateNameServerAddrPeriod useABSLock useEpollNativeSelector usePIDColdCtrStrategy
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond useReentrantLockWhenPutMessage
    useStaticSubscription waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage
    wakeFlushWhenPutMessage writeBufferHighWaterMark writeBufferLowWaterMark
"""

WITHOUT_EFFECT: frozenset[str] = frozenset(_NAMES.split())
"""Accepted, kept and shown; they steer what this broker has not: thread pools, caches, exporters, the timer
wheel, transaction checks, pop. What is missing itself says so where it is asked for."""
