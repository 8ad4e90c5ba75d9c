package epochmq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** An administrator's requests to running consumers, and clients during a broker's outage. */
final class ControlScenarios {
    private ControlScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("reset", ControlScenarios::reset);
        all.put("relay", ControlScenarios::relay);
        all.put("outage", ControlScenarios::outage);
    }

    /** Asks the driver's caller to act; the caller answers with a line. */
    private static void ready() {
        System.out.println("{\"ready\":true}");
        System.out.flush();
    }

    private static DefaultMQPushConsumer consumer(Kit kit, List<MessageExt> received) throws Exception {
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(kit.topic(), "*");
        consumer.registerMessageListener(ConsumeScenarios.collect(received));
        consumer.start();
        return consumer;
    }

    /** The offset of a running group is reset by time, and the group gets the messages again. */
    private static void reset(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        List<MessageExt> received = ConsumeScenarios.list();
        consumer(kit, received);
        kit.sendMany(topic, "old-", 10);
        Kit.laterThanNow(30);
        long between = System.currentTimeMillis();
        Kit.laterThanNow(30);
        kit.sendMany(topic, "new-", 10);
        ConsumeScenarios.receive(received, 20);
        kit.fact("first", ConsumeScenarios.texts(received));
        received.clear();
        Map<MessageQueue, Long> offsets = kit.admin().resetOffsetByTimestamp(topic, kit.group(), between, true);
        Map<Integer, Long> byQueue = new TreeMap<>();
        offsets.forEach((queue, offset) -> byQueue.put(queue.getQueueId(), offset));
        kit.fact("offsets", byQueue);
        ConsumeScenarios.receive(received, 10);
        kit.fact("again", ConsumeScenarios.texts(received));
    }

    /** Requests that the broker forwards to a consumer. */
    private static void relay(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        List<MessageExt> received = ConsumeScenarios.list();
        DefaultMQPushConsumer consumer = consumer(kit, received);
        SendResult result = kit.producer().send(Kit.message(topic, "once"));
        ConsumeScenarios.receive(received, 1);
        DefaultMQAdminExt admin = kit.admin();
        ConsumerConnection connection = admin.examineConsumerConnectionInfo(kit.group());
        kit.fact("clients", connection.getConnectionSet().size());
        kit.fact("message_model", connection.getMessageModel().name());
        kit.fact("consume_type", connection.getConsumeType().name());
        Map<String, String> subscriptions = new TreeMap<>();
        for (SubscriptionData data : connection.getSubscriptionTable().values()) {
            subscriptions.put(data.getTopic(), data.getSubString());
        }
        kit.fact("subscriptions", subscriptions);
        String clientId = connection.getConnectionSet().iterator().next().getClientId();
        kit.fact("client_id_is_ours", clientId.endsWith(consumer.getInstanceName()));
        ConsumerRunningInfo info = admin.getConsumerRunningInfo(kit.group(), clientId, false);
        List<Integer> queues = new ArrayList<>();
        info.getMqTable().keySet().stream().filter(q -> q.getTopic().equals(topic)).forEach(q ->
            queues.add(q.getQueueId()));
        kit.fact("running_queues", queues);
        ConsumeMessageDirectlyResult again =
            admin.consumeMessageDirectly(kit.group(), clientId, topic, result.getOffsetMsgId());
        kit.fact("direct", again.getConsumeResult().name());
        kit.fact("received", ConsumeScenarios.texts(received));
    }

    /**
     * Sends and consumes while the broker is killed and started again, each when this says that it is ready for it, and
     * consumes until it has everything that was acknowledged.
     */
    private static void outage(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        Set<String> received = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(m -> received.add(Kit.text(m)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        consumer.start();
        List<String> acknowledged = kit.sendMany(topic, "before-", 50);
        Kit.awaitTrue(120_000, "the consumer is at work", () -> received.size() >= 50);
        AtomicInteger failed = new AtomicInteger();
        AtomicInteger number = new AtomicInteger();
        Callable<Boolean> sendOne = () -> {
            String body = "during-" + number.getAndIncrement();
            Kit.laterThanNow(2);
            try {
                kit.producer().send(Kit.message(topic, body), 1_000);
                acknowledged.add(body);
                return true;
            } catch (Exception error) {
                failed.incrementAndGet();
                return false;
            }
        };
        ready();
        Kit.awaitTrue(60_000, "the broker's end is felt", () -> !sendOne.call());
        System.in.read();
        ready();
        while (System.in.available() == 0) {
            sendOne.call();
        }
        long resumed = System.nanoTime();
        Kit.awaitTrue(120_000, "sends go through again", () -> {
            try {
                kit.producer().send(Kit.message(topic, "after"));
                return true;
            } catch (Exception error) {
                return false;
            }
        });
        kit.fact("resumed_ms", Kit.millisSince(resumed));
        acknowledged.addAll(kit.sendMany(topic, "end-", 50));
        Kit.awaitQuietly(120_000, () -> received.containsAll(acknowledged));
        kit.fact("failed", failed.get());
        kit.fact("acknowledged", acknowledged.size());
        acknowledged.removeAll(received);
        kit.fact("missing", acknowledged);
    }
}
