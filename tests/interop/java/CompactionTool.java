import java.io.BufferedWriter;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * RocketMQ's message store with a compaction topic: opens a directory, runs the arguments' steps in order, and closes it.
 * Arguments: ROOT LOGFILEBYTES COMPACTIONLOGBYTES COMPACTIONQUEUEBYTES, then any of write:FROM:COUNT (messages by number),
 * compact (every queue, now), gets:FILE (what a get at every offset returns), halt.
 */
public final class CompactionTool {
    private static final String TOPIC = "compacted";
    private static final int QUEUES = 2;

    private CompactionTool() {
    }

    public static void main(String[] args) {
        ToolProcess.run(CompactionTool::run, args);
    }

    private static void run(String[] args) throws Exception {
        MessageStoreConfig config = LocalStore.config(args[0], args[1]);
        config.setCompactionMappedFileSize(Integer.parseInt(args[2]));
        config.setCompactionCqMappedFileSize(Integer.parseInt(args[3]));
        config.setMappedFileSizeConsumeQueue(20 * 1000);
        config.setMaxHashSlotNum(1000);
        config.setEnableCompaction(true);
        TopicConfig topic = new TopicConfig(TOPIC, QUEUES, QUEUES);
        topic.getAttributes().put("cleanup.policy", "COMPACTION");
        DefaultMessageStore store = LocalStore.open(config, topic);
        for (int at = 4; at < args.length; at++) {
            String[] words = args[at].split(":");
            switch (words[0]) {
                case "write": write(store, Integer.parseInt(words[1]), Integer.parseInt(words[2])); break;
                case "compact": compact(store); break;
                case "gets": gets(store, Paths.get(words[1])); break;
                case "halt": Runtime.getRuntime().halt(0); break;
                default: throw new IllegalArgumentException(args[at]);
            }
        }
        LocalStore.close(store);
    }

    /** The message with this number; the test makes the same ones. */
    private static MessageExtBrokerInner message(int number) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(TOPIC);
        message.setQueueId(number % QUEUES);
        MessageAccessor.putProperty(message, "UNIQ_KEY", String.format("%032X", number));
        if (number % 29 != 3) {
            message.setKeys("schlüssel" + number * 7 % 60);
        }
        if (number % 4 != 0) {
            message.setTags("tag" + number % 3);
        }
        message.setBornTimestamp(1700000000000L + number);
        message.setBody(new byte[number % 13 == 5 ? 0 : number * 37 % 300 + 1]);
        LocalStore.complete(message);
        return message;
    }

    private static void write(DefaultMessageStore store, int from, int count) throws Exception {
        for (int number = from; number < from + count; number++) {
            LocalStore.put(store, message(number));
        }
        LocalStore.awaitDispatched(store);
    }

    private static Object field(Object of, String name) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }

    private static void compact(DefaultMessageStore store) throws Exception {
        Map<?, ?> logs = (Map<?, ?>) field(field(store, "compactionStore"), "compactionLogTable");
        for (Object log : new TreeMap<>(logs).values()) {
            Method method = log.getClass().getDeclaredMethod("doCompaction");
            method.setAccessible(true);
            method.invoke(log);
        }
    }

    private static void gets(DefaultMessageStore store, Path path) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(path, StandardCharsets.US_ASCII)) {
            for (int queue = 0; queue < QUEUES; queue++) {
                long end = store.getMaxOffsetInQueue(TOPIC, queue);
                for (long offset = 0; offset <= end + 1; offset++) {
                    for (int count : new int[] {1, 5, 32}) {
                        GetMessageResult found = store.getMessage("g", TOPIC, queue, offset, count, null);
                        out.write(queue + " " + offset + " " + count + " " + found.getStatus() + " "
                            + found.getNextBeginOffset() + " " + found.getMinOffset() + " " + found.getMaxOffset());
                        for (ByteBuffer record : found.getMessageBufferList()) {
                            out.write(" " + record.getLong(20) + "@" + record.getLong(28));
                        }
                        found.release();
                        out.write("\n");
                    }
                }
            }
        }
    }
}
