import java.net.InetSocketAddress;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ's message store without a broker around it: opens it, writes messages, and waits until they are dispatched. */
final class LocalStore {
    private LocalStore() {
    }

    /** Settings for a store in this directory, with a small index and without the services that a test does not need. */
    static MessageStoreConfig config(String root, String logFileBytes) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(logFileBytes));
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(4000);
        config.setHaListenPort(0);
        config.setEnableCompaction(false);
        config.setTimerWheelEnable(false);
        return config;
    }

    /** A store with these topics, loaded and started. */
    static DefaultMessageStore open(MessageStoreConfig config, TopicConfig... topics) throws Exception {
        return start(make(config, new BrokerConfig(), topics));
    }

    static DefaultMessageStore make(MessageStoreConfig config, BrokerConfig broker, TopicConfig... topics) throws Exception {
        ConcurrentMap<String, TopicConfig> table = new ConcurrentHashMap<>();
        for (TopicConfig topic : topics) {
            table.put(topic.getTopicName(), topic);
        }
        return new DefaultMessageStore(config, new BrokerStatsManager("interop", false), null, broker, table);
    }

    static DefaultMessageStore start(DefaultMessageStore store) throws Exception {
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        return store;
    }

    /** Sets what a broker sets before it stores a message: the hosts, the text of the properties, and the tags' code. */
    static void complete(MessageExtBrokerInner message) {
        message.setBornHost(new InetSocketAddress("127.0.0.2", 40000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
    }

    static void put(DefaultMessageStore store, MessageExtBrokerInner message) {
        PutMessageResult result = store.putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException(message + " " + result);
        }
    }

    /**
     * Closes a store in order. The interrupt ends a pause of three seconds at the beginning, in which clients of a broker
     * would get their responses.
     */
    static void close(DefaultMessageStore store) {
        Thread.currentThread().interrupt();
        store.shutdown();
    }

    /** Until everything that was written is in queues and index. */
    static void awaitDispatched(DefaultMessageStore store) throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
    }
}
