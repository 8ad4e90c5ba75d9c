package epochmq.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A producer and a consumer of a static topic, whose queues an administrator moves to another broker meanwhile. */
final class StaticTopicScenarios {
    private static final int EACH = 50;
    private static final int POLL_MS = 500;
    private static final BufferedReader CALLER = new BufferedReader(new InputStreamReader(System.in));

    private final Kit kit;
    /** Queue id to the bodies that were acknowledged, in order. */
    private final Map<Integer, List<String>> sent = new TreeMap<>();
    /** Queue id to the bodies that were received, in order, without repetitions. */
    private final Map<Integer, List<String>> received = Collections.synchronizedMap(new TreeMap<>());
    /** Queue id to the offsets of the received messages. */
    private final Map<Integer, List<Long>> offsets = Collections.synchronizedMap(new TreeMap<>());
    private int number;
    private int failures;

    private StaticTopicScenarios(Kit kit) {
        this.kit = kit;
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("remap", kit -> new StaticTopicScenarios(kit).remap());
    }

    /** Asks the driver's caller to act, and waits until it has. */
    static Thread acting() {
        System.out.println("{\"ready\":true}");
        System.out.flush();
        Thread waiting = new Thread(() -> {
            try {
                CALLER.readLine();
            } catch (Exception ended) {
                throw new IllegalStateException(ended);
            }
        });
        waiting.start();
        return waiting;
    }

    private void remap() throws Exception {
        Kit.awaitTrue(60_000, "the route", () -> kit.queuesOf(kit.topic()).size() == 2);
        DefaultMQPushConsumer consumer = consumer(true);
        DefaultMQProducer producer = kit.clients.producer("static_producer");
        producer.setPollNameServerInterval(POLL_MS);
        producer.setSendMsgTimeout(3_000);
        producer.start();
        kit.onClose(producer::shutdown);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(kit.topic());
        Collections.sort(queues);
        kit.fact("broker", queues.get(0).getBrokerName());
        for (int move = 0; move < 2; move++) {
            send(producer, queues, EACH);
            Thread acting = acting();
            while (acting.isAlive()) {
                send(producer, queues, 1);
            }
            send(producer, queues, EACH);
        }
        awaitAll();
        consumer.shutdown();
        kit.fact("failures", failures);
        kit.fact("missing", missing());
        kit.fact("sent", count(sent));
        kit.fact("in_order", received.equals(sent));
        kit.fact("offsets_rise", offsets.values().stream().allMatch(StaticTopicScenarios::rise));
        Map<String, Boolean> ends = new TreeMap<>();
        for (MessageQueue queue : queues) {
            List<Long> known = offsets.get(queue.getQueueId());
            ends.put("first", known.get(0) == kit.clients.puller.minOffset(queue));
            ends.put("last", known.get(known.size() - 1) + 1 == kit.clients.puller.maxOffset(queue));
            ends.put("oldest", kit.clients.puller.searchOffset(queue, 0) == 0);
            ends.put("newest", kit.clients.puller.searchOffset(queue, Long.MAX_VALUE) >= known.get(known.size() - 1));
        }
        kit.fact("ends", ends);
        resume(producer, queues);
    }

    /** A new consumer of the group continues where the former one ended. It needs no locks, which the former one had. */
    private void resume(DefaultMQProducer producer, List<MessageQueue> queues) throws Exception {
        received.clear();
        sent.clear();
        send(producer, queues, 1);
        consumer(false);
        awaitAll();
        kit.fact("resumed", received.equals(sent));
    }

    private DefaultMQPushConsumer consumer(boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setPollNameServerInterval(POLL_MS);
        consumer.setHeartbeatBrokerInterval(POLL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(kit.topic(), "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(this::take);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(this::take);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return consumer;
    }

    private void take(MessageExt message) {
        synchronized (received) {
            List<String> bodies = received.computeIfAbsent(message.getQueueId(), id -> new ArrayList<>());
            String body = Kit.text(message);
            if (!bodies.contains(body)) {
                bodies.add(body);
                offsets.computeIfAbsent(message.getQueueId(), id -> new ArrayList<>()).add(message.getQueueOffset());
            }
        }
    }

    /** Sends messages to each queue; one that fails is sent again until it is acknowledged. */
    private void send(DefaultMQProducer producer, List<MessageQueue> queues, int each) throws Exception {
        for (int i = 0; i < each; i++) {
            String body = "m-" + number++;
            for (MessageQueue queue : queues) {
                AtomicBoolean stored = new AtomicBoolean();
                Kit.awaitTrue(60_000, "a send to " + queue, () -> {
                    try {
                        SendResult result = producer.send(Kit.message(kit.topic(), body), queue);
                        stored.set(result.getMessageQueue().getQueueId() == queue.getQueueId());
                        return true;
                    } catch (Exception error) {
                        failures++;
                        return false;
                    }
                });
                if (stored.get()) {
                    sent.computeIfAbsent(queue.getQueueId(), id -> new ArrayList<>()).add(body);
                }
            }
            Kit.laterThanNow(5);
        }
    }

    private void awaitAll() throws Exception {
        Kit.awaitQuietly(120_000, () -> missing().isEmpty());
    }

    private List<String> missing() {
        List<String> missing = new ArrayList<>();
        sent.forEach((id, bodies) -> {
            List<String> known = received.getOrDefault(id, Collections.emptyList());
            synchronized (received) {
                bodies.stream().filter(body -> !known.contains(body)).forEach(body -> missing.add(id + ":" + body));
            }
        });
        return missing;
    }

    private static int count(Map<Integer, List<String>> table) {
        return table.values().stream().mapToInt(List::size).sum();
    }

    private static boolean rise(List<Long> numbers) {
        for (int i = 1; i < numbers.size(); i++) {
            if (numbers.get(i) <= numbers.get(i - 1)) {
                return false;
            }
        }
        return true;
    }
}
