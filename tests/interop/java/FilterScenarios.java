package epochmq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers that select messages by an SQL92 expression. */
final class FilterScenarios {
    private static final String[] COLORS = {"red", "green", "blue"};

    private FilterScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("sql_push", FilterScenarios::push);
        all.put("sql_posted", FilterScenarios::posted);
        all.put("sql_lite_pull", FilterScenarios::litePull);
        all.put("sql_resubscribe", FilterScenarios::resubscribe);
        all.put("sql_invalid", FilterScenarios::invalid);
        all.put("sql_long_search", FilterScenarios::longSearch);
    }

    /** Sends messages with the properties `number`, `color` and, every fourth, `mark`. */
    private static void send(Kit kit, String topic, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            Message message = Kit.message(topic, "m-" + i);
            message.putUserProperty("number", String.valueOf(i));
            message.putUserProperty("color", COLORS[i % COLORS.length]);
            if (i % 4 == 0) {
                message.putUserProperty("mark", "x");
            }
            kit.producer().send(message);
        }
    }

    private static void push(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        send(kit, topic, 0, 60);
        List<MessageExt> received = ConsumeScenarios.list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, MessageSelector.bySql("number >= 30 AND color IN ('red', 'blue') AND mark IS NULL"));
        consumer.registerMessageListener(ConsumeScenarios.collect(received));
        consumer.start();
        ConsumeScenarios.receive(received, 15);
        send(kit, topic, 60, 120);
        ConsumeScenarios.receive(received, 45);
        kit.fact("received", ConsumeScenarios.texts(received));
    }

    private static void posted(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        List<MessageExt> received = ConsumeScenarios.list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setPostSubscriptionWhenPull(true);
        consumer.subscribe(topic, MessageSelector.bySql("number BETWEEN 10 AND 19 OR color STARTSWITH 'gre'"));
        consumer.registerMessageListener(ConsumeScenarios.collect(received));
        consumer.start();
        send(kit, topic, 0, 60);
        ConsumeScenarios.receive(received, 26);
        kit.fact("received", ConsumeScenarios.texts(received));
    }

    private static void litePull(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        send(kit, topic, 0, 60);
        DefaultLitePullConsumer consumer = kit.litePullConsumer(kit.group());
        consumer.subscribe(topic, MessageSelector.bySql("NOT (number < 50) AND color <> 'green'"));
        consumer.start();
        kit.fact("received", Kit.texts(ConsumeScenarios.poll(consumer, 7)));
    }

    private static void resubscribe(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        List<MessageExt> received = ConsumeScenarios.list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, MessageSelector.bySql("color = 'red'"));
        consumer.registerMessageListener(ConsumeScenarios.collect(received));
        consumer.start();
        send(kit, topic, 0, 30);
        ConsumeScenarios.receive(received, 10);
        kit.fact("first", ConsumeScenarios.texts(received));
        received.clear();
        consumer.subscribe(topic, MessageSelector.bySql("color = 'blue'"));
        consumer.getDefaultMQPushConsumerImpl().doRebalance();
        // A heartbeat is skipped while another one is sent.
        Kit.awaitTrue(60_000, "heartbeat with the new expression",
            () -> consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock());
        send(kit, topic, 30, 60);
        ConsumeScenarios.receive(received, 10);
        kit.fact("second", ConsumeScenarios.texts(received));
    }

    private static void invalid(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, MessageSelector.bySql("number >"));
        consumer.registerMessageListener(ConsumeScenarios.collect(ConsumeScenarios.list()));
        try {
            consumer.start();
            kit.fact("code", 0);
        } catch (MQClientException error) {
            kit.fact("code", error.getResponseCode());
        }
    }

    /** More messages than one pull examines lie before the one that matches. */
    private static void longSearch(Kit kit) throws Exception {
        String topic = kit.createTopic(1);
        for (int batch = 0; batch < 20; batch++) {
            List<Message> messages = new ArrayList<>();
            for (int i = batch * 100; i < batch * 100 + 100; i++) {
                Message message = Kit.message(topic, "m-" + i);
                message.putUserProperty("number", String.valueOf(i));
                messages.add(message);
            }
            kit.producer().send(messages);
        }
        send(kit, topic, 5000, 5001);
        List<MessageExt> received = ConsumeScenarios.list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, MessageSelector.bySql("number = 3 OR number = 5000"));
        consumer.registerMessageListener(ConsumeScenarios.collect(received));
        consumer.start();
        ConsumeScenarios.receive(received, 2);
        kit.fact("received", ConsumeScenarios.texts(received));
    }
}
