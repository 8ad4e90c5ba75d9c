package epochmq.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to send a message. */
final class SendScenarios {
    private SendScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("sync", SendScenarios::sync);
        all.put("async", SendScenarios::async);
        all.put("oneway", SendScenarios::oneway);
        all.put("batch", SendScenarios::batch);
        all.put("large_batch", SendScenarios::largeBatch);
        all.put("selector", SendScenarios::selector);
        all.put("unicode", SendScenarios::unicode);
        all.put("big", SendScenarios::big);
        all.put("auto_create", SendScenarios::autoCreate);
        all.put("topic_127", SendScenarios::topic127);
        all.put("refusals", SendScenarios::refusals);
    }

    private static void sync(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        List<Map<String, Object>> results = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            Message message = Kit.message(topic, "tag" + i % 3, "sync-" + i);
            message.setKeys("key-" + i);
            message.setFlag(i);
            message.putUserProperty("number", Integer.toString(i));
            Map<String, Object> result = Kit.describe(kit.producer().send(message));
            result.put("body", "sync-" + i);
            results.add(result);
        }
        kit.fact("results", results);
        kit.fact("stored", Kit.describe(kit.drain(topic, 100)));
    }

    private static void async(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        int count = 500;
        CountDownLatch answered = new CountDownLatch(count);
        Semaphore inFlight = new Semaphore(64);
        List<Map<String, Object>> results = Collections.synchronizedList(new ArrayList<>());
        List<String> errors = Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < count; i++) {
            String body = "async-" + i;
            inFlight.acquire();
            kit.producer().send(Kit.message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    Map<String, Object> data = Kit.describe(result);
                    data.put("body", body);
                    results.add(data);
                    inFlight.release();
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    errors.add(String.valueOf(error));
                    inFlight.release();
                    answered.countDown();
                }
            });
        }
        kit.fact("answered", answered.await(180, TimeUnit.SECONDS));
        kit.fact("results", results);
        kit.fact("errors", errors);
        kit.fact("stored", Kit.describe(kit.drain(topic, count)));
    }

    private static void oneway(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        for (int i = 0; i < 100; i++) {
            kit.producer().sendOneway(Kit.message(topic, "oneway-" + i));
        }
        kit.fact("stored", Kit.texts(kit.drain(topic, 100)));
    }

    private static void batch(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            Message message = Kit.message(topic, "tag", "batch-" + i);
            message.setKeys("batch-key-" + i);
            message.putUserProperty("number", Integer.toString(i));
            messages.add(message);
        }
        kit.fact("result", Kit.describe(kit.producer().send(messages)));
        MessageQueue third = kit.queuesOf(topic).get(3);
        List<Message> placed = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            placed.add(Kit.message(topic, "placed-" + i));
        }
        kit.fact("placed_result", Kit.describe(kit.producer().send(placed, third)));
        kit.fact("stored", Kit.describe(kit.drain(topic, 25)));
    }

    /** Sends a batch of thousands of messages while another thread sends single messages to the same queue. */
    private static void largeBatch(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        MessageQueue queue = kit.queuesOf(topic).get(2);
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 5_000; i++) {
            Message message = Kit.message(topic, "tag", "batch-" + i);
            message.setKeys("batch-key-" + i);
            messages.add(message);
        }
        AtomicBoolean done = new AtomicBoolean();
        CompletableFuture<List<Map<String, Object>>> singles = CompletableFuture.supplyAsync(() -> {
            List<Map<String, Object>> results = new ArrayList<>();
            try {
                do {
                    String body = "single-" + results.size();
                    Map<String, Object> result = Kit.describe(kit.producer().send(Kit.message(topic, body), queue));
                    result.put("body", body);
                    results.add(result);
                } while (!done.get());
            } catch (Exception error) {
                throw new CompletionException(error);
            }
            return results;
        });
        List<Map<String, Object>> results = new ArrayList<>();
        try {
            for (int i = 0; i < 3; i++) {
                results.add(Kit.describe(kit.producer().send(messages, queue, 30_000)));
            }
        } finally {
            done.set(true);
        }
        kit.fact("results", results);
        kit.fact("single_results", singles.get(60, TimeUnit.SECONDS));
        int stored = 3 * messages.size() + singles.get().size();
        kit.fact("stored", kit.drain(topic, stored).stream().map(one ->
            List.of(one.getQueueId(), one.getQueueOffset(), new String(one.getBody(), StandardCharsets.UTF_8)))
            .collect(Collectors.toList()));
    }

    private static void selector(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        for (int i = 0; i < 200; i++) {
            kit.producer().send(
                Kit.message(topic, "order-" + i % 8 + "-" + i / 8),
                (queues, message, key) -> queues.get((Integer) key % queues.size()),
                i % 8);
        }
        kit.fact("stored", Kit.describe(kit.drain(topic, 200)));
    }

    private static void unicode(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        Message message = new Message(topic, "métier", "ключ-七", "𝄞 naïve 消息 \u0000 end".getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("Straße", "🚀 = ok, 100 %");
        message.putUserProperty("quote", "\"a\\b\" {x:1} ' \t");
        kit.fact("result", Kit.describe(kit.producer().send(message)));
        kit.fact("stored", Kit.describe(kit.drain(topic, 1)));
        kit.fact("by_key", Kit.describe(LookupScenarios.query(kit, topic, "ключ-七", 1)));
    }

    private static void big(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        DefaultMQProducer producer = kit.clients.producer("interop_big");
        producer.setMaxMessageSize(16 * 1024 * 1024);
        kit.onClose(producer::shutdown);
        producer.start();
        byte[] compressible = "0123456789".repeat(2_000).getBytes(StandardCharsets.UTF_8);
        // Random bytes stay as long as they are: the client tries to compress them and sends what is shorter anyway.
        byte[] noise = new byte[3_900_000];
        new Random(7).nextBytes(noise);
        List<Map<String, Object>> results = new ArrayList<>();
        List<Long> crcs = new ArrayList<>();
        for (byte[] body : List.of(compressible, noise, new byte[] {1})) {
            results.add(Kit.describe(producer.send(new Message(topic, body))));
            crcs.add(Kit.crc(body));
        }
        kit.fact("results", results);
        kit.fact("crcs", crcs);
        kit.fact("stored", Kit.describe(kit.drain(topic, 3)));
        byte[] tooBig = new byte[5_000_000];
        new Random(8).nextBytes(tooBig);
        kit.fact("too_big", refusal(() -> producer.send(new Message(topic, tooBig))));
    }

    private static void autoCreate(Kit kit) throws Exception {
        String topic = kit.topic();
        kit.fact("before", kit.queuesOf(topic).size());
        kit.fact("result", Kit.describe(kit.producer().send(Kit.message(topic, "first"))));
        Kit.awaitTrue(120_000, "route of the new topic", () -> !kit.queuesOf(topic).isEmpty());
        kit.fact("queues", kit.queuesOf(topic).size());
        kit.fact("stored", Kit.texts(kit.drain(topic, 1)));
        DefaultMQProducer wide = kit.clients.producer("interop_wide");
        wide.setDefaultTopicQueueNums(32);
        kit.onClose(wide::shutdown);
        wide.start();
        wide.send(Kit.message(topic + "_wide", "first"));
        Kit.awaitTrue(120_000, "route of the wide topic", () -> !kit.queuesOf(topic + "_wide").isEmpty());
        kit.fact("wide_queues", kit.queuesOf(topic + "_wide").size());
    }

    private static void topic127(Kit kit) throws Exception {
        String topic = "t".repeat(127);
        Message message = Kit.message(topic, "tag", "long name");
        message.setKeys("long-key");
        kit.fact("result", Kit.describe(kit.producer().send(message)));
        List<MessageExt> stored = kit.drain(topic, 1);
        kit.fact("stored", Kit.describe(stored));
        kit.fact("by_key", Kit.describe(LookupScenarios.query(kit, topic, "long-key", 1)));
    }

    private static void refusals(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        MessageQueue real = kit.queuesOf(topic).get(0);
        MessageQueue absent = new MessageQueue(topic, real.getBrokerName(), 9);
        kit.fact("queue_absent", refusal(() -> kit.producer().send(Kit.message(topic, "x"), absent)));
        MessageQueue system = new MessageQueue("SCHEDULE_TOPIC_XXXX", real.getBrokerName(), 0);
        kit.fact("system_topic", refusal(() ->
            kit.producer().send(Kit.message("SCHEDULE_TOPIC_XXXX", "x"), system)));
        kit.fact("pull_queue_absent", refusal(() -> kit.clients.puller.pull(absent, "*", 0, 1)));
        MessageQueue unknown = new MessageQueue(topic + "_unknown", real.getBrokerName(), 0);
        kit.fact("pull_topic_unknown", refusal(() -> kit.clients.puller.pull(unknown, "*", 0, 1)));
    }

    interface Attempt {
        Object run() throws Exception;
    }

    /** The broker's response code to an attempt; 0 when it went through, the error's class when it is another. */
    static Object refusal(Attempt attempt) {
        try {
            attempt.run();
            return 0;
        } catch (MQBrokerException error) {
            return error.getResponseCode();
        } catch (Exception error) {
            return error.toString();
        }
    }
}
