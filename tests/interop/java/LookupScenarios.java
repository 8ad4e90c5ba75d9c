package epochmq.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Finding messages again: by key, by id, by time, by offset. */
@SuppressWarnings("deprecation")
final class LookupScenarios {
    private static final double PROMPT_MS = 3_000;
    private static final int ROUNDS = 4;

    private LookupScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("query", LookupScenarios::queries);
        all.put("offsets", LookupScenarios::offsets);
        all.put("pull_edges", LookupScenarios::pullEdges);
        all.put("hold", LookupScenarios::hold);
    }

    /** Messages of a key; the index may lag behind the send. */
    static List<MessageExt> query(Kit kit, String topic, String key, int expected) throws Exception {
        AtomicReference<List<MessageExt>> found = new AtomicReference<>(Collections.emptyList());
        Kit.awaitQuietly(60_000, () -> {
            try {
                long now = System.currentTimeMillis();
                found.set(kit.producer().queryMessage(topic, key, 32, now - 600_000, now + 600_000).getMessageList());
            } catch (MQClientException none) {
                return false;
            }
            return found.get().size() >= expected;
        });
        return found.get();
    }

    private static void queries(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message message = Kit.message(topic, "query-" + i);
            message.setKeys("own-" + i + " shared");
            results.add(kit.producer().send(message));
        }
        kit.fact("own", Kit.describe(query(kit, topic, "own-3", 1)));
        kit.fact("shared", Kit.texts(query(kit, topic, "shared", 10)));
        SendResult fifth = results.get(5);
        kit.fact("view_unique", Kit.describe(kit.producer().viewMessage(topic, fifth.getMsgId())));
        kit.fact("view_offset_id", Kit.describe(kit.producer().viewMessage(topic, fifth.getOffsetMsgId())));
        kit.fact("result", Kit.describe(fifth));
        long now = System.currentTimeMillis();
        Object missing = SendScenarios.refusal(() -> {
            List<MessageExt> list = kit.producer().queryMessage(topic, "absent", 32, now - 600_000, now).getMessageList();
            return list;
        });
        kit.fact("absent", missing);
    }

    private static void offsets(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        MessageQueue queue = kit.queuesOf(topic).get(0);
        kit.fact("empty_max", kit.producer().maxOffset(queue));
        kit.fact("empty_min", kit.producer().minOffset(queue));
        kit.sendMany(topic, "early-", 10);
        long between = Kit.laterThanNow(30);
        Kit.laterThanNow(30);
        kit.sendMany(topic, "late-", 10);
        List<MessageExt> stored = kit.drain(topic, 20);
        long first = stored.get(0).getStoreTimestamp();
        long last = stored.get(19).getStoreTimestamp();
        kit.fact("max", kit.producer().maxOffset(queue));
        kit.fact("min", kit.producer().minOffset(queue));
        kit.fact("first_store_time", first);
        kit.fact("earliest_store_time", kit.producer().earliestMsgStoreTime(queue));
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("before", kit.producer().searchOffset(queue, first - 60_000));
        found.put("between", kit.producer().searchOffset(queue, between));
        found.put("after", kit.producer().searchOffset(queue, last + 60_000));
        kit.fact("by_time", found);
        DefaultLitePullConsumer consumer = kit.litePullConsumer(kit.group());
        consumer.start();
        consumer.assign(List.of(queue));
        kit.fact("lite_by_time", consumer.offsetForTimestamp(queue, between));
        List<String> texts = new ArrayList<>();
        // A seek interrupts the pull in progress. If that pull just begins, this client closes its connection, the
        // pull from the new offset fails, and the offset is lost: so the seek is repeated.
        for (int seeks = 0; seeks < 4 && texts.size() < 10; seeks++) {
            consumer.seek(queue, 10);
            texts.clear();
            Kit.awaitQuietly(15_000, () -> {
                consumer.poll(200).forEach(m -> texts.add(Kit.text(m)));
                return texts.size() >= 10;
            });
        }
        kit.fact("after_seek", texts);
    }

    private static void pullEdges(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        MessageQueue queue = kit.queuesOf(topic).get(0);
        kit.fact("empty_at_0", describe(kit.clients.puller.pull(queue, "*", 0, 32)));
        kit.fact("empty_at_7", describe(kit.clients.puller.pull(queue, "*", 7, 32)));
        for (int i = 0; i < 40; i++) {
            kit.producer().send(Kit.message(topic, i % 2 == 0 ? "even" : "odd", "edge-" + i));
        }
        kit.drain(topic, 40);
        kit.fact("at_0", describe(kit.clients.puller.pull(queue, "*", 0, 32)));
        kit.fact("at_35", describe(kit.clients.puller.pull(queue, "*", 35, 32)));
        kit.fact("at_end", describe(kit.clients.puller.pull(queue, "*", 40, 32)));
        kit.fact("beyond", describe(kit.clients.puller.pull(queue, "*", 99, 32)));
        kit.fact("odd", describe(kit.clients.puller.pull(queue, "odd", 0, 32)));
        kit.fact("odd_at_38", describe(kit.clients.puller.pull(queue, "odd", 38, 32)));
        kit.fact("none", describe(kit.clients.puller.pull(queue, "none", 0, 32)));
        kit.fact("one", describe(kit.clients.puller.pull(queue, "*", 3, 1)));
    }

    /** Pulls that wait at the broker: until their time is over, and until a message comes. */
    private static void hold(Kit kit) throws Exception {
        MessageQueue queue = kit.queuesOf(kit.createTopic(1)).get(0);
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer(kit.group(), Access.application());
        puller.setNamesrvAddr(kit.clients.nameserver);
        puller.setInstanceName(kit.clients.instance());
        puller.setMqClientApiTimeout(Clients.API_TIMEOUT_MS);
        puller.setVipChannelEnabled(false);
        puller.setBrokerSuspendMaxTimeMillis(3_000);
        puller.setConsumerTimeoutMillisWhenSuspend(30_000);
        kit.onClose(puller::shutdown);
        puller.start();
        // Delays by other processes on the machine are not measured.
        int round = 0;
        while (holdOnce(kit, puller, queue, round++) >= PROMPT_MS && round < ROUNDS) {
            puller.setBrokerSuspendMaxTimeMillis(3_000);
        }
    }

    /**
     * One pull that ends when its time is over, which is at a check of the broker, and then one that is woken long before
     * the next check. Returns the milliseconds from the send to the second one's result.
     */
    private static double holdOnce(Kit kit, DefaultMQPullConsumer puller, MessageQueue queue, long end) throws Exception {
        long started = System.nanoTime();
        kit.fact("ended", describe(puller.pullBlockIfNotFound(queue, "*", end, 32), end));
        kit.fact("ended_ms", Kit.millisSince(started));
        puller.setBrokerSuspendMaxTimeMillis(20_000);
        FutureTask<PullResult> waiting = new FutureTask<>(() -> puller.pullBlockIfNotFound(queue, "wanted", end, 32));
        Thread waiter = new Thread(waiting);
        waiter.start();
        Kit.laterThanNow(500);
        kit.fact("waited", !waiting.isDone());
        long sent = System.nanoTime();
        kit.producer().send(Kit.message(queue.getTopic(), "wanted", "woken"));
        kit.fact("woken", describe(waiting.get(60, TimeUnit.SECONDS), end));
        double woken = Kit.millisSince(sent);
        kit.fact("woken_ms", woken);
        return woken;
    }

    /** A result with the next offset counted from the pull's. */
    private static Map<String, Object> describe(PullResult result, long from) {
        Map<String, Object> data = describe(result);
        data.put("next", result.getNextBeginOffset() - from);
        return data;
    }

    private static Map<String, Object> describe(PullResult result) {
        Map<String, Object> data = new LinkedHashMap<>();
        data.put("status", result.getPullStatus().name());
        data.put("next", result.getNextBeginOffset());
        data.put("min", result.getMinOffset());
        data.put("max", result.getMaxOffset());
        data.put("count", result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size());
        return data;
    }
}
