"""Lists the keys of the Java broker's configuration (5.3.3) that are not fields of `BrokerConfig`.

The names are those of BrokerConfig, BrokerIdentity, MessageStoreConfig, NettyServerConfig, NettyClientConfig
and AuthConfig, which the Java broker fills from one file.
"""

from __future__ import annotations

_FALSE = ("false", "")
_OTHER_REPLICATION = "this broker replicates through the HA service only"

REJECTED_UNLESS: dict[str, tuple[tuple[str, ...], str]] = {
    "duplicationEnable": (_FALSE, _OTHER_REPLICATION),
    "storeType": (("default", ""), "this broker has the file store only"),
    "messageStorePlugIn": (("",), "store plug-ins are not supported"),
    "fetchNamesrvAddrByAddressServer": (_FALSE, "set the nameservers in namesrvAddr"),
}
"""key → (the accepted values, which change nothing; why others are rejected)."""

_NAMES = """
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

WITHOUT_EFFECT: frozenset[str] = frozenset(_NAMES.split())
"""Accepted and shown by GET_BROKER_CONFIG. They concern things that this broker does not have: thread pools,
caches, exporters. Requests for these are rejected."""
