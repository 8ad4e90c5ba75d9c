import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.HexFormat;
import org.apache.rocketmq.broker.filter.CommitLogDispatcherCalcBitMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;

/**
 * RocketMQ's message store with consume queue extensions and filter bit maps: opens a directory, runs the arguments'
 * steps in order, and closes it. Arguments: ROOT LOGFILEBYTES QUEUEFILEBYTES EXTENSIONFILEBYTES, then any of
 * write:FROM:COUNT (messages of topic T with a property `a`), dump:FILE (every unit of its queue).
 */
public final class ExtensionTool {
    private static final String TOPIC = "T";

    private ExtensionTool() {
    }

    public static void main(String[] args) {
        ToolProcess.run(ExtensionTool::run, args);
    }

    private static void run(String[] args) throws Exception {
        ConsumerFilterManager filters = new ConsumerFilterManager();
        filters.register(TOPIC, "small", "a < 50", "SQL92", 1);
        filters.register(TOPIC, "round", "a ENDSWITH '0'", "SQL92", 1);
        MessageStoreConfig config = LocalStore.config(args[0], args[1]);
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMappedFileSizeConsumeQueueExt(Integer.parseInt(args[3]));
        config.setEnableConsumeQueueExt(true);
        config.setBitMapLengthConsumeQueueExt(filters.getBloomFilter().getM());
        BrokerConfig broker = new BrokerConfig();
        broker.setEnableCalcFilterBitMap(true);
        DefaultMessageStore store = LocalStore.make(config, broker);
        store.getDispatcherList().addFirst(new CommitLogDispatcherCalcBitMap(broker, filters));
        LocalStore.start(store);
        for (int at = 4; at < args.length; at++) {
            String[] words = args[at].split(":");
            if (words[0].equals("write")) {
                write(store, Integer.parseInt(words[1]), Integer.parseInt(words[2]));
            } else {
                dump(store, words[1]);
            }
        }
        LocalStore.close(store);
    }

    private static void write(DefaultMessageStore store, int from, int count) throws Exception {
        for (int number = from; number < from + count; number++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(TOPIC);
            message.setQueueId(0);
            message.setBody(new byte[10]);
            message.setTags("tag" + number % 3);
            MessageAccessor.putProperty(message, "a", String.valueOf(number));
            LocalStore.complete(message);
            LocalStore.put(store, message);
        }
        LocalStore.awaitDispatched(store);
    }

    private static void dump(DefaultMessageStore store, String file) throws Exception {
        LocalStore.awaitDispatched(store);
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(file), StandardCharsets.US_ASCII)) {
            long offset = 0;
            long end = store.getMaxOffsetInQueue(TOPIC, 0);
            while (offset < end) {
                ReferredIterator<CqUnit> units = store.getConsumeQueue(TOPIC, 0).iterateFrom(offset);
                while (units.hasNext()) {
                    CqUnit unit = units.next();
                    ConsumeQueueExt.CqExtUnit ext = unit.getCqExtUnit();
                    byte[] bits = ext == null ? null : ext.getFilterBitMap();
                    out.write(unit.getPos() + " " + unit.getTagsCode() + " " + (ext == null ? -1 : ext.getMsgStoreTime())
                        + " " + (bits == null ? "-" : HexFormat.of().formatHex(bits)) + "\n");
                    offset = unit.getQueueOffset() + 1;
                }
                units.release();
            }
        }
    }
}
