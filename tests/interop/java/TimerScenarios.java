package epochmq.interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages with a delivery time, and their recall. */
final class TimerScenarios {
    private static final long DAY_MS = 24 * 3600 * 1000L;
    /** Messages are sent, and recalled, so long before they are due; a busy machine may take seconds for it. */
    private static final long EARLY_MS = 15_000;

    private TimerScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("timer", TimerScenarios::timer);
        all.put("timer_rejections", TimerScenarios::rejections);
        all.put("timer_recall", TimerScenarios::recall);
        all.put("timer_delete", TimerScenarios::delete);
        all.put("timer_many", TimerScenarios::many);
    }

    private static Map<String, Object> send(Kit kit, Message message, List<Map<String, Object>> results) throws Exception {
        long before = System.currentTimeMillis();
        SendResult result = kit.producer().send(message);
        Map<String, Object> data = Kit.describe(result);
        data.put("body", new String(message.getBody()));
        data.put("before", before);
        data.put("recall_handle", result.getRecallHandle());
        results.add(data);
        return data;
    }

    private static void timer(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        List<Map<String, Object>> results = new ArrayList<>();
        Message message = Kit.message(topic, "tag", "delay_ms");
        message.setKeys("a key");
        message.setDelayTimeMs(2500);
        send(kit, message, results);
        message = Kit.message(topic, "delay_sec");
        message.setDelayTimeSec(3);
        send(kit, message, results);
        message = Kit.message(topic, "deliver_ms");
        long due = System.currentTimeMillis() + EARLY_MS;
        message.setDeliverTimeMs(due);
        send(kit, message, results).put("due", due);
        message = Kit.message(topic, "whole_second");
        due = System.currentTimeMillis() / 1000 * 1000 + EARLY_MS;
        message.setDeliverTimeMs(due);
        send(kit, message, results).put("due", due);
        message = Kit.message(topic, "past");
        message.setDeliverTimeMs(System.currentTimeMillis() - 5000);
        send(kit, message, results);
        message = Kit.message(topic, "level");
        message.setDelayTimeLevel(1);
        message.setDelayTimeMs(60_000);
        send(kit, message, results);
        kit.fact("results", results);
        kit.fact("stored", Kit.describe(kit.drain(topic, 6)));
    }

    private static String attempt(Kit kit, Message message) throws Exception {
        try {
            return kit.producer().send(message).getSendStatus().name();
        } catch (MQBrokerException error) {
            return error.getResponseCode() + " " + error.getErrorMessage();
        }
    }

    private static void rejections(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        Map<String, Object> answers = new LinkedHashMap<>();
        Message message = Kit.message(topic, "too late");
        message.setDelayTimeMs(3 * DAY_MS + 60_000);
        answers.put("too_late", attempt(kit, message));
        for (String name : new String[] {"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"}) {
            message = Kit.message(topic, "no number");
            MessageAccessor.putProperty(message, name, "x");
            answers.put(name, attempt(kit, message));
        }
        message = Kit.message(topic, "deletes the past");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, topic + "+x");
        message.setDeliverTimeMs(System.currentTimeMillis() - 1000);
        answers.put("deletes_the_past", attempt(kit, message));
        kit.fact("answers", answers);
        kit.fact("stored", Kit.texts(kit.drain(topic, 0)));
    }

    private static String attemptRecall(Kit kit, String topic, String handle) throws Exception {
        try {
            return kit.producer().recallMessage(topic, handle);
        } catch (MQBrokerException error) {
            return error.getResponseCode() + " " + error.getErrorMessage();
        }
    }

    private static void recall(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        List<Map<String, Object>> results = new ArrayList<>();
        long due = System.currentTimeMillis() + EARLY_MS;
        for (int i = 0; i < 4; i++) {
            Message message = Kit.message(topic, "recall-" + i);
            message.setDeliverTimeMs(due);
            send(kit, message, results);
        }
        List<String> answers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            answers.add(attemptRecall(kit, topic, (String) results.get(i).get("recall_handle")));
        }
        kit.fact("answers", answers);
        kit.fact("results", results);
        kit.fact("due", due);
        List<MessageExt> found = kit.drain(topic, 2);
        kit.fact("stored", Kit.describe(found));
        Map<String, Object> wrong = new LinkedHashMap<>();
        wrong.put("past", attemptRecall(kit, topic, (String) results.get(0).get("recall_handle")));
        kit.fact("wrong", wrong);
        // What was recalled would have come with the others.
        kit.fact("again", Kit.texts(kit.drain(topic, 2)));
    }

    private static void delete(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        List<Map<String, Object>> results = new ArrayList<>();
        long due = System.currentTimeMillis() + EARLY_MS;
        for (int i = 0; i < 3; i++) {
            Message message = Kit.message(topic, "delete-" + i);
            message.setDeliverTimeMs(due);
            send(kit, message, results);
        }
        Message message = Kit.message(topic, "deletes");
        message.setDeliverTimeMs(due);
        MessageAccessor.putProperty(
            message, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, topic + "+" + results.get(1).get("msg_id"));
        send(kit, message, results);
        message = Kit.message(topic, "end");
        message.setDeliverTimeMs(due + 1000);
        send(kit, message, results);
        kit.fact("stored", Kit.texts(kit.drain(topic, 3)));
    }

    private static void many(Kit kit) throws Exception {
        String topic = kit.createTopic(4);
        long due = System.currentTimeMillis() + 4000;
        List<Map<String, Object>> results = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            Message message = Kit.message(topic, "many-" + i);
            message.setDeliverTimeMs(due + i % 3 * 1000);
            send(kit, message, results).put("due", due + i % 3 * 1000);
        }
        kit.fact("results", results);
        kit.fact("stored", Kit.describe(kit.drain(topic, 300)));
    }
}
