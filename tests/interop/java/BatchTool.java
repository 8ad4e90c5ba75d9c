import java.io.BufferedWriter;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's message store with a topic of type BatchCQ: opens a directory, runs the arguments' steps in order, and closes
 * it. Arguments: ROOT LOGFILEBYTES BATCHQUEUEFILEBYTES, then any of write:FROM:COUNT (inner batches by number, and some
 * messages that are none), dump:FILE (every unit), gets:FILE (what a get at every offset returns), times:IN:OUT (lines of
 * epoch ms), truncate:OFFSET (the log), halt.
 */
public final class BatchTool {
    private static final String TOPIC = "batches";

    private BatchTool() {
    }

    public static void main(String[] args) {
        ToolProcess.run(BatchTool::run, args);
    }

    private static void run(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMapperFileSizeBatchConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(4000);
        config.setHaListenPort(0);
        config.setEnableCompaction(false);
        config.setTimerWheelEnable(false);
        TopicConfig topic = new TopicConfig(TOPIC, 1, 1);
        topic.getAttributes().put("queue.type", "BatchCQ");
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topics.put(TOPIC, topic);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("interop", false), null, new BrokerConfig(), topics);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        for (int at = 3; at < args.length; at++) {
            String[] words = args[at].split(":");
            switch (words[0]) {
                case "write": write(store, Integer.parseInt(words[1]), Integer.parseInt(words[2])); break;
                case "dump": dump(store, Paths.get(words[1])); break;
                case "gets": gets(store, Paths.get(words[1])); break;
                case "times": times(store, Paths.get(words[1]), Paths.get(words[2])); break;
                case "truncate": store.truncateFiles(Long.parseLong(words[1])); break;
                case "halt": Runtime.getRuntime().halt(0); break;
                default: throw new IllegalArgumentException(args[at]);
            }
        }
        store.shutdown();
    }

    /** The message with this number; the test makes the same ones. */
    private static MessageExtBrokerInner message(int number) {
        MessageExtBatch message = new MessageExtBatch();
        message.setTopic(TOPIC);
        message.setQueueId(0);
        MessageAccessor.putProperty(message, "UNIQ_KEY", String.format("%032X", number));
        message.setTags("tag" + number % 3);
        message.setBornTimestamp(1700000000000L + number);
        message.setBornHost(new InetSocketAddress("127.0.0.2", 40000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        message.setInnerBatch(true);
        if (number % 17 == 11) {
            message.setBody(new byte[number % 50]);
        } else {
            List<Message> messages = new ArrayList<>();
            for (int at = 0; at <= number % 5; at++) {
                messages.add(new Message(TOPIC, new byte[number % 40 + 1]));
            }
            message.setBody(MessageDecoder.encodeMessages(messages));
            message.setSysFlag(MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG);
            int count = MessageDecoder.countInnerMsgNum(ByteBuffer.wrap(message.getBody()));
            MessageAccessor.putProperty(message, "INNER_NUM", String.valueOf(count));
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
        return message;
    }

    private static void write(DefaultMessageStore store, int from, int count) throws Exception {
        for (int number = from; number < from + count; number++) {
            PutMessageResult result = store.putMessage(message(number));
            if (!result.isOk()) {
                throw new IllegalStateException(number + " " + result);
            }
            if (number % 20 == 0) {
                Thread.sleep(2);
            }
        }
        awaitDispatched(store);
    }

    private static void awaitDispatched(DefaultMessageStore store) throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
    }

    private static void dump(DefaultMessageStore store, Path path) throws Exception {
        awaitDispatched(store);
        try (BufferedWriter out = Files.newBufferedWriter(path, StandardCharsets.US_ASCII)) {
            ConsumeQueueInterface queue = store.getConsumeQueue(TOPIC, 0);
            out.write(queue.getMinOffsetInQueue() + " " + queue.getMaxOffsetInQueue() + "\n");
            long offset = queue.getMinOffsetInQueue();
            while (offset >= 0 && offset < queue.getMaxOffsetInQueue()) {
                ReferredIterator<CqUnit> units = queue.iterateFrom(offset);
                long before = offset;
                while (units.hasNext()) {
                    CqUnit unit = units.next();
                    if (unit.getQueueOffset() + unit.getBatchNum() > before) {
                        out.write(unit.getQueueOffset() + " " + unit.getBatchNum() + " " + unit.getPos() + " "
                            + unit.getSize() + " " + unit.getTagsCode() + "\n");
                        offset = unit.getQueueOffset() + unit.getBatchNum();
                    }
                }
                units.release();
                if (offset == before) {
                    offset++;
                }
            }
        }
    }

    private static void gets(DefaultMessageStore store, Path path) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(path, StandardCharsets.US_ASCII)) {
            long end = store.getMaxOffsetInQueue(TOPIC, 0);
            for (long offset = 0; offset <= end + 1; offset++) {
                for (int count : new int[] {1, 4, 32, 1000}) {
                    GetMessageResult found = store.getMessage("g", TOPIC, 0, offset, count, null);
                    out.write(offset + " " + count + " " + found.getStatus() + " " + found.getNextBeginOffset() + " "
                        + found.getMinOffset() + " " + found.getMaxOffset() + " " + found.getMessageCount());
                    for (ByteBuffer record : found.getMessageBufferList()) {
                        out.write(" " + record.getLong(20));
                    }
                    found.release();
                    out.write("\n");
                }
            }
        }
    }

    private static void times(DefaultMessageStore store, Path in, Path to) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(to, StandardCharsets.US_ASCII)) {
            for (String line : Files.readAllLines(in, StandardCharsets.US_ASCII)) {
                long time = Long.parseLong(line);
                out.write(store.getOffsetInQueueByTime(TOPIC, 0, time, BoundaryType.LOWER) + " "
                    + store.getOffsetInQueueByTime(TOPIC, 0, time, BoundaryType.UPPER) + "\n");
            }
        }
    }
}
