package epochmq.interop;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.body.BatchAck;
import org.apache.rocketmq.remoting.protocol.body.BatchAckMessageRequestBody;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PeekMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PollingInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** Consumption by POP: with the push consumer, and request by request. */
final class PopScenarios {
    private static final long ARRIVAL_MS = 150_000;
    /** Long enough for the requests about a popped message, before it is visible again. */
    private static final long POPPED_MS = 20_000;
    private static final long CHANGED_MS = 10_000;

    private PopScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("pop_push", PopScenarios::push);
        all.put("pop_switch", PopScenarios::switchModes);
        all.put("pop_requests", PopScenarios::requests);
        all.put("pop_rejections", PopScenarios::rejections);
        all.put("pop_orderly", PopScenarios::orderly);
        all.put("pop_waits", PopScenarios::waits);
        all.put("pop_handover", PopScenarios::handover);
        all.put("static_pop", PopScenarios::staticTopic);
    }

    private static MQClientInstance client(Kit kit) {
        return kit.producer().getDefaultMQProducerImpl().getMqClientFactory();
    }

    private static String broker(Kit kit) {
        return client(kit).findBrokerAddressInPublish(kit.queuesOf(kit.topic()).get(0).getBrokerName());
    }

    private static void setMode(Kit kit, MessageRequestMode mode) throws Exception {
        kit.admin().setMessageRequestMode(broker(kit), kit.topic(), kit.group(), mode, 0, 60_000);
    }

    private static DefaultMQPushConsumer consumer(Kit kit) throws Exception {
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(20_000);
        consumer.subscribe(kit.topic(), "*");
        // A failed message comes again after two seconds instead of ten.
        Field field = consumer.getDefaultMQPushConsumerImpl().getClass().getDeclaredField("popDelayLevel");
        field.setAccessible(true);
        Arrays.fill((int[]) field.get(consumer.getDefaultMQPushConsumerImpl()), 2);
        return consumer;
    }

    private static void push(Kit kit) throws Exception {
        kit.createTopic(4);
        setMode(kit, MessageRequestMode.POP);
        List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(kit);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            Map<String, Object> data = Kit.describe(message);
            data.put("arrived", System.currentTimeMillis());
            received.add(data);
            boolean fails = Kit.text(message).equals("twice") && message.getReconsumeTimes() < 2;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        List<String> sent = kit.sendMany(kit.topic(), "pop-", 40);
        Message twice = Kit.message(kit.topic(), "tag", "twice");
        twice.setKeys("key");
        twice.putUserProperty("own", "value");
        kit.producer().send(twice);
        Kit.awaitTrue(ARRIVAL_MS, "every message arrives", () -> received.size() >= sent.size() + 1);
        // A waiting POP learns of retried messages with the next message of the topic.
        Kit.awaitQuietly(ARRIVAL_MS, () -> received.size() >= sent.size() + 3);
        Kit.awaitQuietly(3_000, () -> received.size() > sent.size() + 3);
        kit.fact("sent", sent);
        kit.fact("received", new ArrayList<>(received));
        kit.fact("assigned", assigned(consumer));
        kit.fact("retry_queues", kit.queuesOf("%RETRY%" + kit.group() + "_" + kit.topic()).size());
    }

    private static List<String> assigned(DefaultMQPushConsumer consumer) {
        List<String> found = new ArrayList<>();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().keySet()
            .forEach(queue -> found.add(queue.getTopic() + " " + queue.getQueueId()));
        Collections.sort(found);
        return found;
    }

    /** A group changes from pull to POP and back while messages arrive. */
    private static void switchModes(Kit kit) throws Exception {
        kit.createTopic(4);
        Set<String> received = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(kit);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> received.add(Kit.text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        AtomicInteger sent = new AtomicInteger();
        AtomicBoolean sending = new AtomicBoolean(true);
        Thread feeder = new Thread(() -> {
            while (sending.get()) {
                try {
                    kit.producer().send(Kit.message(kit.topic(), "switch-" + sent.get()));
                    sent.incrementAndGet();
                } catch (Exception error) {
                    kit.fact("send_error", error.toString());
                    return;
                }
                LockSupport.parkNanos(20_000_000);
            }
        });
        kit.onClose(() -> sending.set(false));
        feeder.start();
        List<String> modes = new ArrayList<>();
        for (MessageRequestMode mode : new MessageRequestMode[] {MessageRequestMode.POP, MessageRequestMode.PULL}) {
            int before = received.size();
            Kit.awaitTrue(ARRIVAL_MS, "messages arrive", () -> received.size() > before + 50);
            setMode(kit, mode);
            // A client asks for its queues every twenty seconds, or when its group changes.
            Kit.awaitTrue(ARRIVAL_MS, "the consumer changes to " + mode, () -> {
                consumer.getDefaultMQPushConsumerImpl().doRebalance();
                return assigned(consumer).isEmpty() == (mode == MessageRequestMode.PULL);
            });
            modes.add(mode.name());
        }
        int before = received.size();
        Kit.awaitTrue(ARRIVAL_MS, "messages arrive after the last change", () -> received.size() > before + 50);
        sending.set(false);
        feeder.join();
        Kit.awaitQuietly(ARRIVAL_MS, () -> received.size() >= sent.get());
        kit.fact("modes", modes);
        kit.fact("sent", sent.get());
        kit.fact("received", received.size());
    }

    // Request by request

    private static RemotingCommand invoke(Kit kit, int code, CommandCustomHeader header, byte[] body) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, header);
        request.setBody(body);
        return client(kit).getMQClientAPIImpl().getRemotingClient().invokeSync(broker(kit), request, 60_000);
    }

    private static Map<String, Object> describe(RemotingCommand response) {
        Map<String, Object> data = new LinkedHashMap<>();
        data.put("code", response.getCode());
        data.put("remark", response.getRemark());
        data.put("fields", response.getExtFields() == null ? new HashMap<>() : new TreeMap<>(response.getExtFields()));
        List<Map<String, Object>> messages = new ArrayList<>();
        for (MessageExt message : messages(response)) {
            messages.add(Kit.describe(message));
        }
        data.put("messages", messages);
        return data;
    }

    static List<MessageExt> messages(RemotingCommand response) {
        if (response.getBody() == null || response.getBody().length == 0) {
            return Collections.emptyList();
        }
        return MessageDecoder.decodesBatch(java.nio.ByteBuffer.wrap(response.getBody()), true, true, true);
    }

    /**
     * A request without a birth time, which the broker takes for its own time: it rejects one that is half a second older
     * than it may wait, as on a busy machine.
     */
    static PopMessageRequestHeader popHeader(Kit kit) {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setTopic(kit.topic());
        header.setConsumerGroup(kit.group());
        header.setQueueId(-1);
        header.setMaxMsgNums(32);
        header.setInvisibleTime(60_000);
        header.setPollTime(0);
        header.setBornTime(0);
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        return header;
    }

    static RemotingCommand pop(Kit kit, PopMessageRequestHeader header) throws Exception {
        return invoke(kit, RequestCode.POP_MESSAGE, header, null);
    }

    private static String extraInfo(RemotingCommand pop, MessageExt message, long start, String retry, String broker) {
        if (message.getProperty("POP_CK") != null) {
            return message.getProperty("POP_CK");
        }
        Map<String, String> fields = pop.getExtFields();
        return start + " " + fields.get("popTime") + " " + fields.get("invisibleTime") + " " + fields.get("reviveQid")
            + " " + retry + " " + broker + " " + message.getQueueId() + " " + message.getQueueOffset();
    }

    private static RemotingCommand ack(Kit kit, String topic, String info, int queueId, long offset) throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(topic);
        header.setConsumerGroup(kit.group());
        header.setQueueId(queueId);
        header.setOffset(offset);
        header.setExtraInfo(info);
        return invoke(kit, RequestCode.ACK_MESSAGE, header, null);
    }

    private static RemotingCommand change(Kit kit, String topic, String info, int queueId, long offset, long invisible)
        throws Exception {
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setTopic(topic);
        header.setConsumerGroup(kit.group());
        header.setQueueId(queueId);
        header.setOffset(offset);
        header.setExtraInfo(info);
        header.setInvisibleTime(invisible);
        return invoke(kit, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, null);
    }

    private static RemotingCommand peek(Kit kit) throws Exception {
        PeekMessageRequestHeader header = new PeekMessageRequestHeader();
        header.setTopic(kit.topic());
        header.setConsumerGroup(kit.group());
        header.setQueueId(-1);
        header.setMaxMsgNums(32);
        return invoke(kit, RequestCode.PEEK_MESSAGE, header, null);
    }

    private static NotificationRequestHeader notification(Kit kit, long pollTime) {
        NotificationRequestHeader header = new NotificationRequestHeader();
        header.setTopic(kit.topic());
        header.setConsumerGroup(kit.group());
        header.setQueueId(-1);
        header.setPollTime(pollTime);
        header.setBornTime(0);
        return header;
    }

    /** Five messages: one acknowledged, one given another time, two acknowledged as a batch, one forgotten. */
    private static void requests(Kit kit) throws Exception {
        kit.createTopic(1);
        String name = kit.queuesOf(kit.topic()).get(0).getBrokerName();
        for (int i = 0; i < 5; i++) {
            Message message = Kit.message(kit.topic(), "tag", "request-" + i);
            message.setKeys("key");
            message.putUserProperty("own", "value");
            kit.producer().send(message);
        }
        kit.fact("notification", describe(invoke(kit, RequestCode.NOTIFICATION, notification(kit, 0), null)));
        kit.fact("peek", describe(peek(kit)));
        PopMessageRequestHeader header = popHeader(kit);
        header.setMaxMsgNums(2);
        RemotingCommand first = pop(kit, header);
        kit.fact("first", describe(first));
        header.setMaxMsgNums(32);
        header.setInvisibleTime(POPPED_MS);
        RemotingCommand second = pop(kit, header);
        kit.fact("second", describe(second));
        kit.fact("empty", describe(pop(kit, header)));
        kit.fact("peek_empty", describe(peek(kit)));
        kit.fact("no_notification", describe(invoke(kit, RequestCode.NOTIFICATION, notification(kit, 0), null)));
        List<MessageExt> messages = new ArrayList<>(messages(first));
        messages.addAll(messages(second));
        kit.fact("ack", describe(ack(kit, kit.topic(), extraInfo(first, messages.get(0), 0, "0", name), 0, 0)));
        RemotingCommand changed = change(kit, kit.topic(), extraInfo(first, messages.get(1), 0, "0", name), 0, 1, CHANGED_MS);
        kit.fact("changed", describe(changed));
        BatchAck batch = new BatchAck();
        batch.setConsumerGroup(kit.group());
        batch.setTopic(kit.topic());
        batch.setRetry("0");
        batch.setStartOffset(2);
        batch.setQueueId(0);
        batch.setReviveQueueId(Integer.parseInt(second.getExtFields().get("reviveQid")));
        batch.setPopTime(Long.parseLong(second.getExtFields().get("popTime")));
        batch.setInvisibleTime(POPPED_MS);
        java.util.BitSet bits = new java.util.BitSet();
        bits.set(0);
        bits.set(2);
        batch.setBitSet(bits);
        BatchAckMessageRequestBody body = new BatchAckMessageRequestBody();
        body.setBrokerName(name);
        body.setAcks(Collections.singletonList(batch));
        kit.fact("batch", describe(invoke(kit, RequestCode.BATCH_ACK_MESSAGE, null, body.encode())));
        List<Map<String, Object>> again = new ArrayList<>();
        header.setInvisibleTime(60_000);
        Kit.awaitQuietly(60_000, () -> {
            RemotingCommand found = pop(kit, header);
            for (MessageExt message : messages(found)) {
                Map<String, Object> data = Kit.describe(message);
                data.put("fields", new TreeMap<>(found.getExtFields()));
                data.put("ack", ack(kit, "%RETRY%" + kit.group() + "_" + kit.topic(),
                    message.getProperty("POP_CK"), 0, message.getQueueOffset()).getCode());
                again.add(data);
            }
            return again.size() >= 2;
        });
        kit.fact("again", again);
        kit.fact("stored_again", Kit.describe(kit.drain("%RETRY%" + kit.group() + "_" + kit.topic(), 2)));
        List<Map<String, Object>> revived = new ArrayList<>();
        List<String> systemTopics = new ArrayList<>();
        for (MessageQueue queue : reviveQueues(kit, name)) {
            for (MessageExt record : kit.drainQueue(queue)) {
                if (Kit.text(record).contains(kit.topic() + "\"")) {
                    revived.add(Kit.describe(record));
                }
            }
            systemTopics.add(queue.getTopic());
        }
        kit.fact("revive_queues", systemTopics.size());
        kit.fact("revive_records", revived);
    }

    private static List<MessageQueue> reviveQueues(Kit kit, String brokerName) throws Exception {
        String cluster = client(kit).getMQClientAPIImpl().getBrokerClusterInfo(60_000).getBrokerAddrTable()
            .get(brokerName).getCluster();
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            queues.add(new MessageQueue("rmq_sys_REVIVE_LOG_" + cluster, brokerName, i));
        }
        return queues;
    }

    private static void rejections(Kit kit) throws Exception {
        kit.createTopic(1);
        String name = kit.queuesOf(kit.topic()).get(0).getBrokerName();
        kit.producer().send(Kit.message(kit.topic(), "one"));
        Map<String, Object> found = new LinkedHashMap<>();
        PopMessageRequestHeader header = popHeader(kit);
        header.setTopic("unknown_topic_of_pop");
        found.put("pop_topic", describe(pop(kit, header)));
        header = popHeader(kit);
        header.setMaxMsgNums(33);
        found.put("pop_count", describe(pop(kit, header)));
        header = popHeader(kit);
        header.setQueueId(7);
        found.put("pop_queue", describe(pop(kit, header)));
        header = popHeader(kit);
        header.setExpType("SQL92");
        header.setExp("a >");
        found.put("pop_expression", describe(pop(kit, header)));
        header = popHeader(kit);
        header.setBornTime(System.currentTimeMillis() - 5_000);
        header.setPollTime(1_000);
        found.put("pop_late", describe(invoke(kit, RequestCode.POP_MESSAGE, header, null)));
        RemotingCommand popped = pop(kit, popHeader(kit));
        MessageExt message = messages(popped).get(0);
        String info = extraInfo(popped, message, 0, "0", name);
        found.put("ack_topic", describe(ack(kit, "unknown_topic_of_pop", info, 0, 0)));
        found.put("ack_queue", describe(ack(kit, kit.topic(), info, 7, 0)));
        found.put("ack_offset", describe(ack(kit, kit.topic(), info, 0, 9)));
        found.put("change_queue", describe(change(kit, kit.topic(), info, 7, 0, 1_000)));
        found.put("change_offset", describe(change(kit, kit.topic(), info, 0, 1, 1_000)));
        found.put("batch_empty", describe(invoke(kit, RequestCode.BATCH_ACK_MESSAGE, null, null)));
        PollingInfoRequestHeader polling = new PollingInfoRequestHeader();
        polling.setTopic(kit.topic());
        polling.setConsumerGroup(kit.group());
        polling.setQueueId(-1);
        found.put("polling", describe(invoke(kit, RequestCode.POLLING_INFO, polling, null)));
        polling.setQueueId(3);
        found.put("polling_queue", describe(invoke(kit, RequestCode.POLLING_INFO, polling, null)));
        kit.fact("responses", found);
    }

    private static void orderly(Kit kit) throws Exception {
        kit.createTopic(1);
        String name = kit.queuesOf(kit.topic()).get(0).getBrokerName();
        kit.sendMany(kit.topic(), "order-", 3);
        Map<String, Object> found = new LinkedHashMap<>();
        PopMessageRequestHeader header = popHeader(kit);
        header.setOrder(true);
        header.setMaxMsgNums(2);
        header.setAttemptId("a");
        header.setInvisibleTime(60_000);
        RemotingCommand first = pop(kit, header);
        found.put("first", describe(first));
        header.setAttemptId("b");
        found.put("blocked", describe(pop(kit, header)));
        header.setAttemptId("a");
        RemotingCommand repeated = pop(kit, header);
        found.put("repeated", describe(repeated));
        MessageExt zero = messages(repeated).get(0);
        MessageExt one = messages(repeated).get(1);
        found.put("old_ack", describe(ack(kit, kit.topic(), extraInfo(first, one, 0, "0", name), 0, 2)));
        found.put("ack", describe(ack(kit, kit.topic(), extraInfo(repeated, zero, 0, "0", name), 0, 0)));
        found.put("wrong_ack", describe(ack(kit, kit.topic(), extraInfo(repeated, zero, 0, "0", name), 0, 2)));
        RemotingCommand changed = change(kit, kit.topic(), extraInfo(repeated, one, 0, "0", name), 0, 1, 1_000);
        found.put("changed", describe(changed));
        header.setAttemptId("c");
        header.setPollTime(30_000);
        RemotingCommand again = pop(kit, header);
        found.put("again", describe(again));
        kit.fact("responses", found);
    }

    private static void waits(Kit kit) throws Exception {
        kit.createTopic(2);
        PopMessageRequestHeader header = popHeader(kit);
        header.setPollTime(1_000);
        long started = System.nanoTime();
        RemotingCommand empty = pop(kit, header);
        kit.fact("empty_ms", Kit.millisSince(started));
        kit.fact("empty", describe(empty));
        kit.onClose(() -> { });
        Thread sender = new Thread(() -> {
            try {
                Kit.laterThanNow(500);
                kit.producer().send(Kit.message(kit.topic(), "awaited"));
            } catch (Exception error) {
                kit.fact("send_error", error.toString());
            }
        });
        sender.start();
        header.setPollTime(30_000);
        started = System.nanoTime();
        RemotingCommand found = pop(kit, header);
        kit.fact("found_ms", Kit.millisSince(started));
        kit.fact("found", describe(found));
        sender.join();
    }

    /** Until the caller has changed the master half of what is received is acknowledged; afterwards everything is. */
    private static void handover(Kit kit) throws Exception {
        kit.createTopic(2);
        List<String> sent = kit.sendMany(kit.topic(), "handover-", 600);
        PopMessageRequestHeader header = popHeader(kit);
        header.setMaxMsgNums(4);
        header.setInvisibleTime(8_000);
        Set<String> before = ConcurrentHashMap.newKeySet();
        List<String> acknowledged = new ArrayList<>();
        Kit.awaitTrue(ARRIVAL_MS, "messages arrive", () -> {
            takeHalf(kit, header, before, acknowledged);
            return acknowledged.size() >= 40;
        });
        Thread acting = StaticTopicScenarios.acting();
        while (acting.isAlive() && before.size() < sent.size() - 100) {
            takeHalf(kit, header, before, acknowledged);
        }
        acting.join();
        header.setMaxMsgNums(32);
        header.setInvisibleTime(60_000);
        List<String> after = Collections.synchronizedList(new ArrayList<>());
        Set<String> wanted = ConcurrentHashMap.newKeySet();
        wanted.addAll(sent);
        acknowledged.forEach(wanted::remove);
        Kit.awaitQuietly(ARRIVAL_MS, () -> take(kit, header, after) && after.containsAll(wanted));
        // Until the messages that were received before the change would be visible again.
        long over = Kit.laterThanNow(1) + 12_000;
        Kit.awaitTrue(60_000, "time passes", () -> take(kit, header, after) && System.currentTimeMillis() > over);
        kit.fact("sent", sent);
        kit.fact("received_before", new ArrayList<>(before));
        kit.fact("acknowledged_before", acknowledged);
        kit.fact("received_after", new ArrayList<>(after));
    }

    /** Receives messages and acknowledges every second one. A master that changes may answer nothing. */
    private static void takeHalf(Kit kit, PopMessageRequestHeader header, Set<String> received, List<String> acknowledged)
        throws Exception {
        try {
            RemotingCommand response = pop(kit, header);
            for (MessageExt message : messages(response)) {
                boolean second = received.add(Kit.text(message)) && received.size() % 2 == 0;
                if (second && acknowledged(kit, response, message)) {
                    acknowledged.add(Kit.text(message));
                }
            }
        } catch (org.apache.rocketmq.remoting.exception.RemotingException changing) {
            client(kit).updateTopicRouteInfoFromNameServer(kit.topic());
        }
    }

    /** Receives and acknowledges; true also if the master cannot be asked at present. */
    private static boolean take(Kit kit, PopMessageRequestHeader header, List<String> found) throws Exception {
        client(kit).updateTopicRouteInfoFromNameServer(kit.topic());
        RemotingCommand response;
        try {
            response = pop(kit, header);
        } catch (org.apache.rocketmq.remoting.exception.RemotingException changing) {
            return true;
        }
        for (MessageExt message : messages(response)) {
            found.add(Kit.text(message));
            acknowledged(kit, response, message);
        }
        return true;
    }

    private static boolean acknowledged(Kit kit, RemotingCommand pop, MessageExt message) throws Exception {
        long start = message.getQueueOffset();
        for (String entry : pop.getExtFields().get("startOffsetInfo").split(";")) {
            String[] parts = entry.split(" ");
            if (parts[0].equals("0") && Integer.parseInt(parts[1]) == message.getQueueId()) {
                start = Long.parseLong(parts[2]);
            }
        }
        String name = kit.queuesOf(kit.topic()).get(0).getBrokerName();
        String info = extraInfo(pop, message, start, "0", name);
        String[] words = info.split(" ");
        String topic = words[4].equals("0") ? kit.topic() : "%RETRY%" + kit.group() + "_" + kit.topic();
        return ack(kit, topic, info, message.getQueueId(), message.getQueueOffset()).getCode() == 0;
    }

    /** Requests about a static topic whose queues were never moved. */
    private static void staticTopic(Kit kit) throws Exception {
        Kit.awaitTrue(60_000, "the route", () -> kit.queuesOf(kit.topic()).size() == 2);
        List<String> sent = kit.sendMany(kit.topic(), "static-", 6);
        MQClientInstance client = client(kit);
        String name = client.getMQClientAPIImpl().getBrokerClusterInfo(60_000).getBrokerAddrTable().keySet()
            .iterator().next();
        String address = client.findBrokerAddressInPublish(name);
        PopMessageRequestHeader header = popHeader(kit);
        header.setInvisibleTime(5_000);
        List<String> received = new ArrayList<>();
        List<Integer> codes = new ArrayList<>();
        Kit.awaitQuietly(30_000, () -> {
            RemotingCommand found = client.getMQClientAPIImpl().getRemotingClient().invokeSync(
                address, RemotingCommand.createRequestCommand(RequestCode.POP_MESSAGE, header), 60_000);
            Map<Integer, Long> starts = new HashMap<>();
            for (MessageExt message : messages(found)) {
                starts.putIfAbsent(message.getQueueId(), message.getQueueOffset());
                String info = extraInfo(found, message, starts.get(message.getQueueId()), "0", name);
                AckMessageRequestHeader acknowledgement = new AckMessageRequestHeader();
                acknowledgement.setTopic(kit.topic());
                acknowledgement.setConsumerGroup(kit.group());
                acknowledgement.setQueueId(message.getQueueId());
                acknowledgement.setOffset(message.getQueueOffset());
                acknowledgement.setExtraInfo(info);
                received.add(Kit.text(message));
                codes.add(client.getMQClientAPIImpl().getRemotingClient().invokeSync(address,
                    RemotingCommand.createRequestCommand(RequestCode.ACK_MESSAGE, acknowledgement), 60_000).getCode());
            }
            return received.size() >= sent.size();
        });
        Kit.laterThanNow(8_000);
        kit.fact("again", messages(client.getMQClientAPIImpl().getRemotingClient().invokeSync(
            address, RemotingCommand.createRequestCommand(RequestCode.POP_MESSAGE, header), 60_000)).size());
        kit.fact("sent", sent);
        kit.fact("received", received);
        kit.fact("codes", codes);
    }
}
