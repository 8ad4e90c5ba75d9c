package epochmq.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Every way a consumer gets messages. */
final class ConsumeScenarios {
    private static final long RECEIVE_MS = 90_000;
    private static final double PROMPT_MS = 200;

    private ConsumeScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("push_concurrent", ConsumeScenarios::pushConcurrent);
        all.put("push_orderly", ConsumeScenarios::pushOrderly);
        all.put("lite_pull", ConsumeScenarios::litePull);
        all.put("tag_filter", ConsumeScenarios::tagFilter);
        all.put("broadcast", ConsumeScenarios::broadcast);
        all.put("delay", ConsumeScenarios::delay);
        all.put("long_poll", ConsumeScenarios::longPoll);
        all.put("restart", ConsumeScenarios::restart);
        all.put("from_timestamp", ConsumeScenarios::fromTimestamp);
        all.put("from_last", ConsumeScenarios::fromLast);
        all.put("resubscribe", ConsumeScenarios::resubscribe);
        all.put("many", ConsumeScenarios::many);
    }

    /** A listener that only collects. */
    static MessageListenerConcurrently collect(List<MessageExt> into) {
        return (messages, context) -> {
            into.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    static List<MessageExt> list() {
        return Collections.synchronizedList(new ArrayList<>());
    }

    /** Waits for `count` messages, then for a moment in which surplus messages would arrive. */
    static void receive(List<MessageExt> received, int count) throws Exception {
        if (Kit.awaitQuietly(RECEIVE_MS, () -> received.size() >= count)) {
            Kit.awaitQuietly(300, () -> received.size() > count);
        }
    }

    private static List<Map<String, Object>> describe(List<MessageExt> received) {
        synchronized (received) {
            return Kit.describe(received);
        }
    }

    static List<String> texts(List<MessageExt> received) {
        synchronized (received) {
            return Kit.texts(received);
        }
    }

    private static void pushConcurrent(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        kit.sendMany(topic, "before-", 100);
        List<MessageExt> received = list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(collect(received));
        consumer.start();
        receive(received, 100);
        kit.sendMany(topic, "after-", 200);
        receive(received, 300);
        kit.fact("received", describe(received));
    }

    private static void pushOrderly(Kit kit) throws Exception {
        String topic = kit.createTopic(3);
        Map<Integer, List<String>> byQueue = new ConcurrentHashMap<>();
        Set<Integer> busy = ConcurrentHashMap.newKeySet();
        AtomicInteger overlaps = new AtomicInteger();
        AtomicInteger done = new AtomicInteger();
        Set<String> suspended = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            int queue = messages.get(0).getQueueId();
            if (!busy.add(queue)) {
                overlaps.incrementAndGet();
            }
            try {
                for (MessageExt message : messages) {
                    String text = Kit.text(message);
                    byQueue.computeIfAbsent(queue, q -> new ArrayList<>()).add(text);
                    if (text.endsWith("-5") && suspended.add(text)) {
                        context.setSuspendCurrentQueueTimeMillis(100);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    done.incrementAndGet();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            } finally {
                busy.remove(queue);
            }
        });
        consumer.start();
        for (int i = 0; i < 150; i++) {
            kit.producer().send(
                Kit.message(topic, "order-" + i % 3 + "-" + i / 3),
                (queues, message, key) -> queues.get((Integer) key),
                i % 3);
        }
        Kit.awaitQuietly(RECEIVE_MS, () -> done.get() >= 150);
        kit.fact("by_queue", new TreeMap<>(byQueue));
        kit.fact("overlaps", overlaps.get());
        kit.fact("done", done.get());
    }

    private static void litePull(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        kit.sendMany(topic, "one-", 50);
        DefaultLitePullConsumer consumer = kit.litePullConsumer(kit.group());
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        kit.fact("first", Kit.texts(poll(consumer, 50)));
        consumer.commitSync();
        Map<Integer, Long> committed = new TreeMap<>();
        Kit.awaitQuietly(60_000, () -> {
            for (MessageQueue queue : kit.queuesOf(topic)) {
                committed.put(queue.getQueueId(), consumer.committed(queue));
            }
            return committed.values().stream().mapToLong(Long::longValue).sum() == 50;
        });
        kit.fact("committed", committed);
        consumer.shutdown();
        kit.sendMany(topic, "two-", 20);
        DefaultLitePullConsumer successor = kit.litePullConsumer(kit.group());
        successor.subscribe(topic, "*");
        successor.start();
        kit.fact("second", Kit.texts(poll(successor, 20)));
    }

    static List<MessageExt> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        Kit.awaitQuietly(RECEIVE_MS, () -> {
            found.addAll(consumer.poll(200));
            return found.size() >= count;
        });
        found.addAll(consumer.poll(300));
        return found;
    }

    private static void tagFilter(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        List<MessageExt> chosen = list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "red || blue");
        consumer.registerMessageListener(collect(chosen));
        consumer.start();
        // "AaAa" and "BBBB" have the same Java hash, which is all the broker compares.
        List<MessageExt> twin = list();
        DefaultMQPushConsumer other = kit.pushConsumer(kit.group() + "_twin");
        other.subscribe(topic, "AaAa");
        other.registerMessageListener(collect(twin));
        other.start();
        String[] tags = {"red", "green", "blue", "AaAa", "BBBB", null};
        for (int i = 0; i < 120; i++) {
            kit.producer().send(Kit.message(topic, tags[i % tags.length], "tag-" + i));
        }
        receive(chosen, 40);
        receive(twin, 20);
        kit.fact("chosen", texts(chosen));
        kit.fact("twin", texts(twin));
    }

    private static void broadcast(Kit kit) throws Exception {
        String topic = kit.createTopic(3);
        List<List<MessageExt>> all = List.of(list(), list());
        for (List<MessageExt> received : all) {
            DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
            consumer.setMessageModel(MessageModel.BROADCASTING);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(collect(received));
            consumer.start();
        }
        kit.sendMany(topic, "all-", 60);
        receive(all.get(0), 60);
        receive(all.get(1), 60);
        kit.fact("first", texts(all.get(0)));
        kit.fact("second", texts(all.get(1)));
    }

    private static void delay(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Map<String, Object> data = Kit.describe(message);
                data.put("arrived", System.currentTimeMillis());
                received.add(data);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Map<String, Object> sent = new LinkedHashMap<>();
        for (int i = 0; i < 12; i++) {
            Message message = Kit.message(topic, "late", "delay-" + i);
            message.setDelayTimeLevel(1 + i % 3);
            SendResult result = kit.producer().send(message);
            sent.put("delay-" + i, System.currentTimeMillis());
            if (i == 0) {
                kit.fact("result", Kit.describe(result));
            }
        }
        Kit.awaitQuietly(RECEIVE_MS, () -> received.size() >= 12);
        kit.fact("sent", sent);
        kit.fact("received", new ArrayList<>(received));
    }

    /** Runs alone: it measures how soon a waiting consumer sees a message after its acknowledgement. */
    private static void longPoll(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        Map<String, Long> seen = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            messages.forEach(m -> seen.put(Kit.text(m), now));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        kit.sendMany(topic, "warm-", 200);
        Kit.awaitTrue(RECEIVE_MS, "the consumer is at work", () -> seen.size() == 200);
        List<Double> delays = timed(kit, topic, seen, 0);
        // Delays by other processes on the machine are not measured.
        for (int round = 1; round < 4 && Collections.max(delays) >= PROMPT_MS; round++) {
            delays = timed(kit, topic, seen, round);
        }
        kit.fact("delays_ms", delays);
    }

    /** Sends a hundred messages, spaced, and returns the milliseconds from acknowledgement to callback of each. */
    private static List<Double> timed(Kit kit, String topic, Map<String, Long> seen, int round) throws Exception {
        List<Double> delays = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            String body = "timed-" + round + "-" + i;
            Kit.laterThanNow(20 + i * 7 % 60);
            kit.producer().send(Kit.message(topic, body));
            long acknowledged = System.nanoTime();
            Kit.awaitQuietly(10_000, () -> seen.containsKey(body));
            Long at = seen.get(body);
            delays.add(at == null ? 10_000.0 : Math.max(0, (at - acknowledged) / 1e6));
        }
        return delays;
    }

    private static void restart(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        for (String round : List.of("first", "second", "third")) {
            kit.sendMany(topic, round + "-", 25);
            List<MessageExt> received = list();
            DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(collect(received));
            consumer.start();
            receive(received, 25);
            consumer.shutdown();
            kit.fact(round, texts(received));
        }
    }

    private static void fromTimestamp(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        kit.sendMany(topic, "old-", 20);
        Kit.laterThanNow(2_000);
        List<MessageExt> received = list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        consumer.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(System.currentTimeMillis() - 1_000));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(collect(received));
        consumer.start();
        kit.sendMany(topic, "new-", 20);
        receive(received, 40);
        kit.fact("received", texts(received));
    }

    private static void fromLast(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        kit.sendMany(topic, "old-", 20);
        List<MessageExt> received = list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(collect(received));
        consumer.start();
        kit.sendMany(topic, "new-", 20);
        receive(received, 40);
        kit.fact("received", texts(received));
    }

    /** A running consumer subscribes to a second topic. */
    private static void resubscribe(Kit kit) throws Exception {
        String first = kit.createTopic(2);
        String second = kit.createTopic(kit.topic() + "_second", 2);
        List<MessageExt> received = list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(first, "*");
        consumer.registerMessageListener(collect(received));
        consumer.start();
        kit.sendMany(first, "first-", 10);
        receive(received, 10);
        kit.fact("first", texts(received));
        received.clear();
        consumer.subscribe(second, "*");
        consumer.getDefaultMQPushConsumerImpl().doRebalance();
        kit.sendMany(second, "second-", 10);
        kit.sendMany(first, "late-", 10);
        receive(received, 20);
        kit.fact("both", texts(received));
    }

    /** Load on both sides at once: many requests in flight on one connection while the consumer pulls in batches. */
    private static void many(Kit kit) throws Exception {
        String topic = kit.createTopic(8);
        int count = 20_000;
        Map<String, AtomicInteger> received = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setPullBatchSize(32);
        consumer.setConsumeMessageBatchMaxSize(16);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> received.computeIfAbsent(Kit.text(m).substring(0, 12), t -> new AtomicInteger())
                .incrementAndGet());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        char[] filler = new char[1_000];
        Arrays.fill(filler, 'x');
        String rest = new String(filler);
        Semaphore inFlight = new Semaphore(64);
        CountDownLatch answered = new CountDownLatch(count);
        AtomicInteger failed = new AtomicInteger();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                inFlight.release();
                answered.countDown();
            }

            @Override
            public void onException(Throwable error) {
                failed.incrementAndGet();
                inFlight.release();
                answered.countDown();
            }
        };
        for (int i = 0; i < count; i++) {
            inFlight.acquire();
            kit.producer().send(Kit.message(topic, String.format("many-%07d", i) + rest), callback);
        }
        kit.fact("answered", answered.await(180, TimeUnit.SECONDS));
        kit.fact("failed", failed.get());
        Kit.awaitQuietly(RECEIVE_MS, () -> received.size() >= count);
        kit.fact("different", received.size());
        kit.fact("duplicates", received.values().stream().filter(n -> n.get() > 1).count());
    }
}
