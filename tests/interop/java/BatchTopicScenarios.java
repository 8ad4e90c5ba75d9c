package epochmq.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Topics whose queues hold batches (queue.type=BatchCQ). */
final class BatchTopicScenarios {
    private BatchTopicScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("batch_topic", BatchTopicScenarios::batchTopic);
        all.put("batch_topic_singles", BatchTopicScenarios::singles);
    }

    private static List<Message> batch(String topic, int number, int count) {
        List<Message> messages = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            Message message = Kit.message(topic, "tag" + at % 2, number + "-" + at);
            message.setKeys("key-" + number + "-" + at);
            message.setFlag(at);
            message.putUserProperty("number", Integer.toString(at));
            messages.add(message);
        }
        return messages;
    }

    private static String create(Kit kit, int queues) throws Exception {
        return kit.createTopic(kit.topic(), queues, Collections.singletonMap("+queue.type", "BatchCQ"));
    }

    private static List<Long> limits(Kit kit, MessageQueue queue) throws MQClientException {
        DefaultMQProducer producer = kit.producer();
        List<Long> limits = new ArrayList<>();
        limits.add(producer.minOffset(queue));
        limits.add(producer.maxOffset(queue));
        return limits;
    }

    private static Map<String, Object> pull(Kit kit, MessageQueue queue, String tags, long offset, int count)
        throws Exception {
        PullResult result = kit.clients.puller.pull(queue, tags, offset, count, 20_000);
        Map<String, Object> data = new LinkedHashMap<>();
        data.put("offset", offset);
        data.put("count", count);
        data.put("status", result.getPullStatus().name());
        data.put("next", result.getNextBeginOffset());
        data.put("min", result.getMinOffset());
        data.put("max", result.getMaxOffset());
        List<Long> offsets = new ArrayList<>();
        if (result.getMsgFoundList() != null) {
            result.getMsgFoundList().forEach(m -> offsets.add(m.getQueueOffset()));
        }
        data.put("found", offsets);
        return data;
    }

    private static void batchTopic(Kit kit) throws Exception {
        String topic = create(kit, 2);
        MessageQueue queue = kit.queuesOf(topic).get(0);
        MessageQueue unused = kit.queuesOf(topic).get(1);
        kit.fact("limits_before", limits(kit, queue));
        List<Map<String, Object>> results = new ArrayList<>();
        List<Long> times = new ArrayList<>();
        for (int number = 1; number <= 5; number++) {
            times.add(Kit.laterThanNow(30));
            results.add(Kit.describe(kit.producer().send(batch(topic, number, number), queue)));
        }
        times.add(Kit.laterThanNow(30));
        kit.fact("results", results);
        Kit.awaitTrue(60_000, "all batches are in the queue", () -> kit.producer().maxOffset(queue) == 15);
        kit.fact("limits_after", limits(kit, queue));
        kit.fact("limits_unused", limits(kit, unused));
        kit.fact("stored", Kit.describe(kit.drainQueue(queue)));
        List<Map<String, Object>> pulls = new ArrayList<>();
        for (long offset = 0; offset <= 16; offset++) {
            for (int count : new int[] {1, 6, 32}) {
                pulls.add(pull(kit, queue, "*", offset, count));
            }
        }
        kit.fact("pulls", pulls);
        kit.fact("tagged_pull", pull(kit, queue, "tag0", 0, 32));
        List<Long> found = new ArrayList<>();
        for (long time : times) {
            found.add(kit.producer().searchOffset(queue, time));
        }
        kit.fact("times", found);
        kit.fact("earliest", kit.producer().earliestMsgStoreTime(queue));
        MessageExt viewed = kit.producer().viewMessage(topic, (String) results.get(2).get("offset_msg_id"));
        kit.fact("viewed", Kit.describe(viewed));
        List<String> consumed = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(m -> consumed.add(Kit.text(m)));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Kit.awaitTrue(120_000, "all messages are consumed", () -> consumed.size() >= 15);
        kit.producer().send(batch(topic, 9, 2), queue);
        Kit.awaitTrue(120_000, "a later batch is consumed", () -> consumed.size() >= 17);
        kit.fact("consumed", consumed);
    }

    /** Messages that are no batch. */
    private static void singles(Kit kit) throws Exception {
        String topic = create(kit, 1);
        MessageQueue queue = kit.queuesOf(topic).get(0);
        List<Map<String, Object>> results = new ArrayList<>();
        results.add(Kit.describe(kit.producer().send(Kit.message(topic, "single"), queue)));
        results.add(Kit.describe(kit.producer().send(batch(topic, 1, 2), queue)));
        results.add(Kit.describe(kit.producer().send(Kit.message(topic, "single"), queue)));
        results.add(Kit.describe(kit.producer().send(batch(topic, 2, 2), queue)));
        kit.fact("results", results);
        Kit.awaitTrue(60_000, "both batches are in the queue", () -> kit.producer().maxOffset(queue) == 6);
        kit.fact("limits", limits(kit, queue));
        List<Map<String, Object>> pulls = new ArrayList<>();
        for (long offset : new long[] {0, 1, 2, 4, 5, 6}) {
            pulls.add(pull(kit, queue, "*", offset, 32));
        }
        kit.fact("pulls", pulls);
    }
}
