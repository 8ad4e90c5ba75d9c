package epochmq.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.producer.DefaultMQProducerImpl;
import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The tools of a scenario: names of its own, clients that are closed after it, and the facts that it reports. */
final class Kit {
    private static final int BODY_SHOWN_MAX = 200;
    /** Keeps the topics of several drivers on one cluster apart. */
    private static final String PREFIX = System.getProperty("epochmq.interop.prefix", "");

    final String name;
    final Clients clients;
    private final Map<String, Object> facts = Collections.synchronizedMap(new LinkedHashMap<>());
    private final List<Runnable> closers = Collections.synchronizedList(new ArrayList<>());

    Kit(String name, Clients clients) {
        this.name = name;
        this.clients = clients;
    }

    Map<String, Object> facts() {
        synchronized (facts) {
            return new LinkedHashMap<>(facts);
        }
    }

    void fact(String key, Object value) {
        facts.put(key, value);
    }

    void close() {
        Collections.reverse(closers);
        for (Runnable closer : closers) {
            try {
                closer.run();
            } catch (RuntimeException ignored) {
                // The scenario has been checked by then.
            }
        }
    }

    void onClose(Runnable closer) {
        closers.add(closer);
    }

    String topic() {
        return "T_" + PREFIX + name;
    }

    String group() {
        return "G_" + PREFIX + name;
    }

    DefaultMQProducer producer() {
        return clients.producer;
    }

    /** Creates a topic and waits until the nameserver gives its route with that many queues. */
    String createTopic(String topic, int queues) throws Exception {
        return createTopic(topic, queues, Collections.emptyMap());
    }

    /** The same with attributes, whose keys begin with a plus. */
    String createTopic(String topic, int queues, Map<String, String> attributes) throws Exception {
        AtomicReference<Exception> last = new AtomicReference<>();
        boolean created = awaitQuietly(120_000, () -> {
            try {
                // The producer's own method drops the attributes.
                producer().getDefaultMQProducerImpl().getMqClientFactory().getMQAdminImpl()
                    .createTopic("TBW102", topic, queues, 0, attributes);
                return true;
            } catch (MQClientException error) {
                // The client gives each of its requests six seconds, which a busy machine may take.
                last.set(error);
                return false;
            }
        });
        if (!created) {
            throw last.get();
        }
        awaitTrue(120_000, "route of " + topic, () -> queuesOf(topic).size() == queues);
        // A client gives up looking for a route when another of its threads looks for three seconds; a send fails then.
        DefaultMQProducerImpl producer = producer().getDefaultMQProducerImpl();
        awaitTrue(120_000, "the producer has the route of " + topic, () -> {
            producer.getMqClientFactory().updateTopicRouteInfoFromNameServer(topic);
            TopicPublishInfo known = producer.getTopicPublishInfoTable().get(topic);
            return known != null && known.ok();
        });
        return topic;
    }

    String createTopic(int queues) throws Exception {
        return createTopic(topic(), queues);
    }

    /** Queues by the nameserver's route, in order of their ids; empty while the topic is unknown. */
    List<MessageQueue> queuesOf(String topic) {
        try {
            List<MessageQueue> queues = new ArrayList<>(clients.puller.fetchSubscribeMessageQueues(topic));
            Collections.sort(queues);
            return queues;
        } catch (MQClientException unknown) {
            return Collections.emptyList();
        }
    }

    static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    /** Sends `count` messages with the bodies prefix0 … and returns the bodies. */
    List<String> sendMany(String topic, String prefix, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            bodies.add(prefix + i);
            sendPatiently(message(topic, prefix + i));
        }
        return bodies;
    }

    /** Sends a message, again while the broker rejects it as not available: on a busy machine a master may be without its lease. */
    void sendPatiently(Message message) throws Exception {
        awaitTrue(120_000, "the broker accepts messages", () -> {
            try {
                producer().send(message);
                return true;
            } catch (MQClientException error) {
                if (error.getResponseCode() != ResponseCode.SERVICE_NOT_AVAILABLE) {
                    throw error;
                }
                return false;
            }
        });
    }

    /** A push consumer of this scenario that starts at the first message and is shut down with the scenario. */
    DefaultMQPushConsumer pushConsumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, Access.application());
        consumer.setNamesrvAddr(clients.nameserver);
        consumer.setInstanceName(clients.instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMqClientApiTimeout(Clients.API_TIMEOUT_MS);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setVipChannelEnabled(false);
        onClose(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, Access.application());
        consumer.setNamesrvAddr(clients.nameserver);
        consumer.setInstanceName(clients.instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMqClientApiTimeout(Clients.API_TIMEOUT_MS);
        consumer.setPullThreadNums(2);
        consumer.setVipChannelEnabled(false);
        onClose(consumer::shutdown);
        return consumer;
    }

    /** Reads every queue of a topic from its first message by plain pulls until `expected` are there. */
    List<MessageExt> drain(String topic, int expected) throws Exception {
        return drain(topic, expected, 90_000);
    }

    List<MessageExt> drain(String topic, int expected, long timeoutMs) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        awaitQuietly(timeoutMs, () -> {
            found.clear();
            for (MessageQueue queue : queuesOf(topic)) {
                found.addAll(drainQueue(queue));
            }
            return found.size() >= expected;
        });
        return found;
    }

    List<MessageExt> drainQueue(MessageQueue queue) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        long offset = 0;
        while (true) {
            PullResult result = clients.puller.pull(queue, "*", offset, 32, 20_000);
            if (result.getPullStatus() == PullStatus.FOUND) {
                found.addAll(result.getMsgFoundList());
            }
            boolean ended = result.getPullStatus() == PullStatus.NO_NEW_MSG || result.getNextBeginOffset() <= offset;
            if (ended || result.getPullStatus() == PullStatus.OFFSET_ILLEGAL && result.getMaxOffset() <= offset) {
                return found;
            }
            offset = result.getNextBeginOffset();
        }
    }

    /** The client of an administrator, which is shut down with the scenario. */
    DefaultMQAdminExt admin() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Access.administrator(), 20_000L);
        admin.setNamesrvAddr(clients.nameserver);
        admin.setInstanceName(clients.instance());
        onClose(admin::shutdown);
        admin.start();
        return admin;
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static List<String> texts(List<MessageExt> messages) {
        List<String> texts = new ArrayList<>();
        messages.forEach(m -> texts.add(text(m)));
        return texts;
    }

    /** A message as plain data; long bodies as length and CRC only. */
    static Map<String, Object> describe(MessageExt message) {
        Map<String, Object> data = new LinkedHashMap<>();
        data.put("topic", message.getTopic());
        data.put("queue_id", message.getQueueId());
        data.put("queue_offset", message.getQueueOffset());
        data.put("msg_id", message.getMsgId());
        data.put("tags", message.getTags());
        data.put("keys", message.getKeys());
        data.put("flag", message.getFlag());
        data.put("sys_flag", message.getSysFlag());
        data.put("reconsume_times", message.getReconsumeTimes());
        data.put("born_timestamp", message.getBornTimestamp());
        data.put("store_timestamp", message.getStoreTimestamp());
        data.put("store_host", String.valueOf(message.getStoreHost()));
        data.put("properties", new HashMap<>(message.getProperties()));
        byte[] body = message.getBody();
        data.put("length", body.length);
        data.put("crc", crc(body));
        data.put("body", body.length <= BODY_SHOWN_MAX ? text(message) : null);
        return data;
    }

    static List<Map<String, Object>> describe(List<MessageExt> messages) {
        List<Map<String, Object>> all = new ArrayList<>();
        messages.forEach(m -> all.add(describe(m)));
        return all;
    }

    static Map<String, Object> describe(SendResult result) {
        Map<String, Object> data = new LinkedHashMap<>();
        data.put("status", result.getSendStatus().name());
        data.put("msg_id", result.getMsgId());
        data.put("offset_msg_id", result.getOffsetMsgId());
        data.put("queue_id", result.getMessageQueue().getQueueId());
        data.put("broker", result.getMessageQueue().getBrokerName());
        data.put("queue_offset", result.getQueueOffset());
        data.put("region", result.getRegionId());
        data.put("trace_on", result.isTraceOn());
        return data;
    }

    static long crc(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return crc.getValue();
    }

    /** Waits for a condition; the scenario fails when it does not become true. */
    static void awaitTrue(long timeoutMs, String what, Callable<Boolean> condition) throws Exception {
        if (!awaitQuietly(timeoutMs, condition)) {
            throw new AssertionError("not within " + timeoutMs + " ms: " + what);
        }
    }

    /** Waits for a condition and returns whether it became true. */
    static boolean awaitQuietly(long timeoutMs, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                return false;
            }
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(10));
        }
        return true;
    }

    /** Lets the clock move on, so that store times before and after differ. */
    static long laterThanNow(long ms) throws Exception {
        long goal = System.currentTimeMillis() + ms;
        awaitTrue(ms + 60_000, "the clock moves", () -> System.currentTimeMillis() >= goal);
        return System.currentTimeMillis();
    }

    static double millisSince(long startedNanos) {
        return (System.nanoTime() - startedNanos) / 1e6;
    }
}
