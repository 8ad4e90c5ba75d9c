"""The commands of RocketMQ's `mqadmin` 5.3.3."""

from __future__ import annotations

_NAMES = """
    addBroker addWritePerm allocateMQ brokerConsumeStats brokerStatus checkMsgSendRT
    checkRocksdbCqWriteProgress cleanBrokerMetadata cleanExpiredCQ cleanUnusedTopic cloneGroupOffset
    clusterList clusterRT consumeMessage consumerConnection consumerProgress consumerStatus copyAcl
    copyUser createAcl createUser deleteAcl deleteExpiredCommitLog deleteKvConfig deleteSubGroup
    deleteTopic deleteUser dumpCompactionLog electMaster exportConfigs exportMetadata
    exportMetadataInRocksDB exportMetrics exportPopRecord getAcl getBrokerConfig getBrokerEpoch
    getColdDataFlowCtrInfo getConsumerConfig getControllerConfig getControllerMetaData getNamesrvConfig
    getSyncStateSet getUser haStatus listAcl listUser printMsg printMsgByQueue producer
    producerConnection queryCq queryMsgById queryMsgByKey queryMsgByOffset queryMsgByUniqueKey
    queryMsgTraceById remappingStaticTopic removeBroker removeColdDataFlowCtrGroupConfig
    resetMasterFlushOffset resetOffsetByTime rocksDBConfigToJson sendMessage sendMsgStatus
    setCommitLogReadAheadMode setConsumeMode skipAccumulatedMessage startMonitoring statsAll
    topicClusterList topicList topicRoute topicStatus updateAcl updateBrokerConfig
    updateColdDataFlowCtrGroupConfig updateControllerConfig updateKvConfig updateNamesrvConfig
    updateOrderConf updateStaticTopic updateSubGroup updateSubGroupList updateTopic updateTopicList
    updateTopicPerm updateUser wipeWritePerm
"""
COMMANDS = frozenset(_NAMES.split())
"""The commands that MQAdminStartup registers."""
