import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import java.io.BufferedWriter;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageBatch;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;

/**
 * RocketMQ's message store without a broker around it: opens a directory, runs the arguments' steps in order, and
 * closes it. Arguments: ROOT LOGFILEBYTES QUEUEFILEBYTES INDEXSLOTS INDEXENTRIES, then any of
 * write:FROM:COUNT (messages by number, see `message`), log:FILE (every record), queues:FILE (every unit),
 * query:IN:OUT (lines of topic TAB key), times:IN:OUT (lines of topic TAB queue TAB epoch ms), dispatched (until all that
 * was written is in queues and index), wait:MS, halt. The word crc makes the store write and check the property __CRC32#;
 * paths puts its log into two directories. dledger:PORT makes the log that of a DLedger group of one peer, n0, with its data
 * files in ROOT/data, and waits until the peer leads and everything is committed.
 */
public final class StoreTool {
    private static final String LONG_TOPIC = "%RETRY%" + "g".repeat(130);
    private static final String[] TOPICS = {"orders", "payments", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", LONG_TOPIC};
    private final DefaultMessageStore store;

    private StoreTool(DefaultMessageStore store) {
        this.store = store;
    }

    public static void main(String[] args) {
        ToolProcess.run(StoreTool::run, args);
    }

    private static void run(String[] args) throws Exception {
        MessageStoreConfig config = LocalStore.config(args[0], args[1]);
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        if (java.util.Arrays.asList(args).contains("paths")) {
            config.setStorePathCommitLog(args[0] + "/log-b," + args[0] + "/log-a");
        }
        boolean checksums = java.util.Arrays.asList(args).contains("crc");
        config.setEnabledAppendPropCRC(checksums);
        config.setForceVerifyPropCRC(checksums);
        for (String word : args) {
            if (word.startsWith("dledger:")) {
                config.setEnableDLegerCommitLog(true);
                config.setdLegerGroup("interop");
                config.setdLegerSelfId("n0");
                config.setdLegerPeers("n0-127.0.0.1:" + word.substring(8));
                config.setStorePathDLedgerCommitLog(args[0] + "/data");
            }
        }
        DefaultMessageStore store = LocalStore.open(config);
        StoreTool tool = new StoreTool(store);
        for (int at = 5; at < args.length; at++) {
            String[] words = args[at].split(":");
            switch (words[0]) {
                case "write": tool.write(Integer.parseInt(words[1]), Integer.parseInt(words[2])); break;
                case "log": tool.log(Paths.get(words[1])); break;
                case "queues": tool.queues(Paths.get(words[1])); break;
                case "query": tool.query(Paths.get(words[1]), Paths.get(words[2])); break;
                case "times": tool.times(Paths.get(words[1]), Paths.get(words[2])); break;
                case "wait": Thread.sleep(Long.parseLong(words[1])); break;
                case "dispatched": LocalStore.awaitDispatched(store); break;
                case "crc": break;
                case "paths": break;
                case "dledger": tool.awaitLeadership(); break;
                case "halt": Runtime.getRuntime().halt(0); break;
                default: throw new IllegalArgumentException(args[at]);
            }
        }
        LocalStore.close(store);
    }

    private static byte[] body(int number) {
        int size = number % 1000 == 7 ? 65536 : number % 50 == 3 ? 4000 : number % 11 == 0 ? 0 : number * 7 % 450;
        byte[] body = new byte[size];
        for (int at = 0; at < size; at++) {
            body[at] = (byte) (number * 31 + at * 7);
        }
        return body;
    }

    /** The message with this number; the test generates the same ones. */
    private static void fill(Message message, int number) {
        message.setTopic(TOPICS[number % TOPICS.length]);
        message.setBody(body(number));
        message.setFlag(number % 9 - 4);
        MessageAccessor.putProperty(message, "UNIQ_KEY", String.format("%032X", number));
        if (number % 3 != 0) {
            MessageAccessor.putProperty(message, "KEYS", "key" + number % 100 + " k" + number);
        }
        if (number % 4 != 0) {
            MessageAccessor.putProperty(message, "TAGS", "Tag" + number % 7);
        }
        if (number % TOPICS.length == 3) {
            MessageAccessor.putProperty(message, "DELAY", String.valueOf(number % 20 + 1));
        }
        MessageAccessor.putProperty(message, "größe", "wert " + number);
    }

    private static MessageExtBrokerInner message(int number) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, number);
        message.setQueueId(number / 5 % 4);
        message.setSysFlag(number % 97 == 5 ? 4 : number % 97 == 6 ? 8 : number % 97 == 7 ? 12 : 0);
        message.setBornTimestamp(1700000000000L + number);
        message.setBornHost(new InetSocketAddress(number % 13 == 0 ? "2001:db8::1" : "127.0.0.2", 40000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        message.setReconsumeTimes(number % 3);
        message.setPreparedTransactionOffset(number % 97 == 6 ? 12345L : 0);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
        return message;
    }

    /** Ten messages of one topic and queue, from number on, in one batch. */
    private static MessageExtBatch batch(int number) {
        List<Message> messages = new ArrayList<>();
        for (int at = number; at < number + 10; at++) {
            Message message = new Message();
            fill(message, at);
            message.setTopic("batches");
            MessageAccessor.clearProperty(message, "DELAY");
            messages.add(message);
        }
        MessageBatch built = MessageBatch.generateFromList(messages);
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic("batches");
        batch.setQueueId(1);
        batch.setBody(built.encode());
        MessageAccessor.putProperty(batch, "CLUSTER", "interop");
        batch.setBornTimestamp(1700000000000L + number);
        batch.setBornHost(new InetSocketAddress("127.0.0.2", 40000));
        batch.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        return batch;
    }

    private void write(int from, int count) {
        for (int number = from; number < from + count; number++) {
            PutMessageResult result;
            if (number % 500 == 100) {
                result = store.putMessages(batch(number));
                number += 9;
            } else {
                result = store.putMessage(message(number));
            }
            if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException(number + " " + result.getPutMessageStatus());
            }
        }
    }

    /** Until this peer leads, everything is committed and dispatched, and the queues' next offsets are known. */
    private void awaitLeadership() throws Exception {
        DLedgerServer server = ((DLedgerCommitLog) store.getCommitLog()).getdLedgerServer();
        DLedgerStore ledger = server.getdLedgerStore();
        while (!server.getMemberState().isLeader() || ledger.getCommittedIndex() < ledger.getLedgerEndIndex()) {
            Thread.sleep(10);
        }
        LocalStore.awaitDispatched(store);
        store.recoverTopicQueueTable();
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }

    private void log(Path path) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(path, StandardCharsets.UTF_8)) {
            long offset = store.getMinPhyOffset();
            long fileSize = store.getMessageStoreConfig().getMappedFileSizeCommitLog();
            while (offset < store.getMaxPhyOffset()) {
                SelectMappedBufferResult head = store.getCommitLog().getMessage(offset, 8);
                int size = head.getByteBuffer().getInt(0);
                int magic = head.getByteBuffer().getInt(4);
                head.release();
                boolean isBlank = magic == CommitLog.BLANK_MAGIC_CODE;
                if (store.getCommitLog() instanceof DLedgerCommitLog) {
                    isBlank = size == -1;
                    offset += isBlank ? 0 : 48;
                    size = magic - 48;
                }
                if (isBlank) {
                    offset += fileSize - offset % fileSize;
                    continue;
                }
                SelectMappedBufferResult record = store.getCommitLog().getMessage(offset, size);
                MessageExt found = MessageDecoder.decode(record.getByteBuffer(), true, false);
                record.release();
                CRC32 crc = new CRC32();
                byte[] body = found.getBody() == null ? new byte[0] : found.getBody();
                crc.update(body);
                Map<String, String> properties = new TreeMap<>(found.getProperties());
                out.write(String.join("\t", String.valueOf(offset), String.valueOf(size), found.getTopic(),
                    String.valueOf(found.getQueueId()), String.valueOf(found.getQueueOffset()),
                    String.valueOf(found.getCommitLogOffset()), String.valueOf(found.getSysFlag()),
                    String.valueOf(found.getFlag()), String.valueOf(found.getBornTimestamp()),
                    hex(found.getBornHostBytes().array()), String.valueOf(found.getStoreTimestamp()),
                    hex(found.getStoreHostBytes().array()), String.valueOf(found.getReconsumeTimes()),
                    String.valueOf(found.getPreparedTransactionOffset()), String.valueOf(body.length),
                    Long.toHexString(crc.getValue()), properties.toString()));
                out.write('\n');
                offset += size;
            }
        }
    }

    private void queues(Path path) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(path, StandardCharsets.UTF_8)) {
            for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueueInterface>> topic
                : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
                for (ConsumeQueueInterface queue : new TreeMap<>(topic.getValue()).values()) {
                    long offset = queue.getMinOffsetInQueue();
                    while (offset < queue.getMaxOffsetInQueue()) {
                        ReferredIterator<CqUnit> units = queue.iterateFrom(offset);
                        while (units.hasNext()) {
                            CqUnit unit = units.next();
                            out.write(topic.getKey() + "\t" + queue.getQueueId() + "\t" + unit.getQueueOffset() + "\t"
                                + unit.getPos() + "\t" + unit.getSize() + "\t" + unit.getTagsCode() + "\n");
                            offset = unit.getQueueOffset() + 1;
                        }
                        units.release();
                    }
                }
            }
        }
    }

    private void query(Path in, Path to) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(to, StandardCharsets.UTF_8)) {
            for (String line : Files.readAllLines(in, StandardCharsets.UTF_8)) {
                String[] words = line.split("\t");
                QueryMessageResult found = store.queryMessage(words[0], words[1], 64, 0, Long.MAX_VALUE);
                List<String> offsets = new ArrayList<>();
                for (ByteBuffer record : found.getMessageBufferList()) {
                    offsets.add(String.valueOf(record.getLong(28)));
                }
                found.release();
                out.write(line + "\t" + String.join(",", offsets) + "\n");
            }
        }
    }

    private void times(Path in, Path to) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(to, StandardCharsets.UTF_8)) {
            for (String line : Files.readAllLines(in, StandardCharsets.UTF_8)) {
                String[] words = line.split("\t");
                int queue = Integer.parseInt(words[1]);
                long time = Long.parseLong(words[2]);
                out.write(line + "\t" + store.getOffsetInQueueByTime(words[0], queue, time, BoundaryType.LOWER) + "\t"
                    + store.getOffsetInQueueByTime(words[0], queue, time, BoundaryType.UPPER) + "\n");
            }
        }
    }
}
