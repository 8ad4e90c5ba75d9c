import java.io.BufferedWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;

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
        MessageStoreConfig config = LocalStore.config(args[0], args[1]);
        config.setMapperFileSizeBatchConsumeQueue(Integer.parseInt(args[2]));
        TopicConfig topic = new TopicConfig(TOPIC, 1, 1);
        topic.getAttributes().put("queue.type", "BatchCQ");
        DefaultMessageStore store = LocalStore.open(config, topic);
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
        LocalStore.close(store);
    }

    /** The message with this number; the test makes the same ones. */
    private static MessageExtBrokerInner message(int number) {
        MessageExtBatch message = new MessageExtBatch();
        message.setTopic(TOPIC);
        message.setQueueId(0);
        MessageAccessor.putProperty(message, "UNIQ_KEY", String.format("%032X", number));
        message.setTags("tag" + number % 3);
        message.setBornTimestamp(1700000000000L + number);
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
        LocalStore.complete(message);
        return message;
    }

    private static void write(DefaultMessageStore store, int from, int count) throws Exception {
        for (int number = from; number < from + count; number++) {
            LocalStore.put(store, message(number));
            if (number % 20 == 0) {
                Thread.sleep(2);
            }
        }
        LocalStore.awaitDispatched(store);
    }

    private static void dump(DefaultMessageStore store, Path path) throws Exception {
        LocalStore.awaitDispatched(store);
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
