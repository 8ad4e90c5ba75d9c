package epochmq.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages that a consumer fails on. A brand-new group learns of its retry topic only with the client's next
 * route poll, so a first retry may take twenty seconds.
 */
final class RetryScenarios {
    private static final long RETRY_MS = 150_000;

    private RetryScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("retry", RetryScenarios::retry);
        all.put("dead_letter", RetryScenarios::deadLetter);
        all.put("orderly_dead_letter", RetryScenarios::orderlyDeadLetter);
    }

    private static Message message(Kit kit, String body) {
        Message message = Kit.message(kit.topic(), "tag", body);
        message.setKeys("key-" + body);
        message.putUserProperty("own", "value");
        return message;
    }

    private static Map<String, Object> arrival(MessageExt message) {
        Map<String, Object> data = Kit.describe(message);
        data.put("arrived", System.currentTimeMillis());
        return data;
    }

    private static void retry(Kit kit) throws Exception {
        kit.createTopic(2);
        List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(kit.topic(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            received.add(arrival(message));
            context.setDelayLevelWhenNextConsume(1);
            boolean fails = Kit.text(message).equals("twice") && message.getReconsumeTimes() < 2;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        kit.producer().send(message(kit, "never"));
        kit.producer().send(message(kit, "twice"));
        Kit.awaitQuietly(RETRY_MS, () -> received.size() >= 4);
        Kit.awaitQuietly(2_000, () -> received.size() > 4);
        kit.fact("received", new ArrayList<>(received));
        kit.fact("retry_queues", kit.queuesOf("%RETRY%" + kit.group()).size());
    }

    private static void deadLetter(Kit kit) throws Exception {
        kit.createTopic(2);
        List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(kit.topic(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            received.add(arrival(messages.get(0)));
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        kit.fact("result", Kit.describe(kit.producer().send(message(kit, "poison"))));
        List<MessageExt> dead = kit.drain("%DLQ%" + kit.group(), 1, RETRY_MS);
        kit.fact("received", new ArrayList<>(received));
        kit.fact("dead", Kit.describe(dead));
    }

    private static void orderlyDeadLetter(Kit kit) throws Exception {
        kit.createTopic(1);
        List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger good = new AtomicInteger();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(kit.topic(), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            received.add(arrival(message));
            if (Kit.text(message).equals("poison")) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            good.incrementAndGet();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        kit.producer().send(message(kit, "good-1"));
        kit.producer().send(message(kit, "poison"));
        kit.producer().send(message(kit, "good-2"));
        Kit.awaitQuietly(RETRY_MS, () -> good.get() >= 2);
        kit.fact("received", new ArrayList<>(received));
        kit.fact("dead", Kit.describe(kit.drain("%DLQ%" + kit.group(), 1, RETRY_MS)));
    }
}
