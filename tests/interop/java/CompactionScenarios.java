package epochmq.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Topics of which only the newest message of each key is kept (cleanup.policy=COMPACTION). */
final class CompactionScenarios {
    private static final int KEYS = 10;

    private CompactionScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("compaction_topic", CompactionScenarios::topic);
        all.put("compaction_rounds", CompactionScenarios::rounds);
    }

    private static String create(Kit kit) throws Exception {
        return kit.createTopic(kit.topic(), 1, Collections.singletonMap("+cleanup.policy", "COMPACTION"));
    }

    private static Message message(String topic, String key, byte[] body) {
        Message message = new Message(topic, "tag-" + key, body);
        if (!key.isEmpty()) {
            message.setKeys(key);
        }
        return message;
    }

    private static Map<String, Object> pull(Kit kit, MessageQueue queue, long offset, int count) throws Exception {
        PullResult result = kit.clients.puller.pull(queue, "*", offset, count, 20_000);
        Map<String, Object> data = new LinkedHashMap<>();
        data.put("offset", offset);
        data.put("status", result.getPullStatus().name());
        data.put("next", result.getNextBeginOffset());
        data.put("min", result.getMinOffset());
        data.put("max", result.getMaxOffset());
        List<Long> offsets = new ArrayList<>();
        List<String> bodies = new ArrayList<>();
        if (result.getMsgFoundList() != null) {
            for (MessageExt found : result.getMsgFoundList()) {
                offsets.add(found.getQueueOffset());
                bodies.add(new String(found.getBody()));
            }
        }
        data.put("found", offsets);
        data.put("bodies", bodies);
        return data;
    }

    /** What producers and consumers get before any compaction. */
    private static void topic(Kit kit) throws Exception {
        String topic = create(kit);
        MessageQueue queue = kit.queuesOf(topic).get(0);
        try {
            kit.producer().send(message(topic, "", "no key".getBytes()), queue);
        } catch (MQBrokerException error) {
            kit.fact("without_key", error.getResponseCode());
            kit.fact("without_key_remark", error.getErrorMessage());
        }
        List<Object> results = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            results.add(Kit.describe(kit.producer().send(message(topic, "k" + number % 2, ("body" + number).getBytes()), queue)));
        }
        kit.fact("results", results);
        Kit.awaitTrue(60_000, "all are visible", () -> pull(kit, queue, 4, 32).get("status").equals("FOUND"));
        List<Object> pulls = new ArrayList<>();
        for (long offset : new long[] {0, 3, 4, 5, 6, 100}) {
            pulls.add(pull(kit, queue, offset, 2));
        }
        kit.fact("pulls", pulls);
        AtomicReference<Map<String, Object>> held = new AtomicReference<>();
        AtomicReference<Exception> failure = new AtomicReference<>();
        Thread waiting = new Thread(() -> {
            try {
                PullResult result = kit.clients.puller.pullBlockIfNotFound(queue, "*", 5, 32);
                held.set(Collections.singletonMap("status", result.getPullStatus().name()));
            } catch (Exception error) {
                failure.set(error);
            }
        });
        waiting.start();
        Thread.sleep(500);
        long began = System.nanoTime();
        kit.producer().send(message(topic, "k9", "late".getBytes()), queue);
        waiting.join(60_000);
        kit.fact("held", held.get());
        kit.fact("held_ms", (System.nanoTime() - began) / 1_000_000);
        List<String> consumed = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(one -> consumed.add(new String(one.getBody())));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Kit.awaitTrue(120_000, "six messages are consumed", () -> consumed.size() >= 6);
        kit.fact("consumed", new ArrayList<>(consumed));
    }

    /** Messages until the broker has compacted: then the first pull does not return the first message any more. */
    private static void rounds(Kit kit) throws Exception {
        String topic = create(kit);
        MessageQueue queue = kit.queuesOf(topic).get(0);
        int sent = 0;
        Map<String, String> newest = new TreeMap<>();
        Map<String, Object> first = Collections.emptyMap();
        while (first.isEmpty() || !first.get("status").equals("FOUND") || first.get("min").equals(0L)) {
            if (sent >= 20_000) {
                throw new IllegalStateException("no compaction: " + first);
            }
            for (int end = sent + 200; sent < end; sent++) {
                String key = "key" + sent % KEYS;
                String body = "body" + sent;
                kit.producer().send(message(topic, key, body.getBytes()), queue);
                newest.put(key, body);
            }
            Thread.sleep(200);
            first = pull(kit, queue, 0, 1);
        }
        kit.fact("first", first);
        kit.fact("sent", sent);
        Map<String, String> seen = new TreeMap<>();
        List<Long> offsets = new ArrayList<>();
        long offset = 0;
        while (offset < sent) {
            PullResult result = kit.clients.puller.pull(queue, "*", offset, 32, 20_000);
            if (result.getMsgFoundList() != null) {
                for (MessageExt found : result.getMsgFoundList()) {
                    seen.put(found.getKeys(), new String(found.getBody()));
                    offsets.add(found.getQueueOffset());
                }
            }
            offset = result.getNextBeginOffset();
        }
        kit.fact("newest", newest);
        kit.fact("seen", seen);
        kit.fact("offsets", offsets);
    }
}
