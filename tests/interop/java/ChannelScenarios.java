package epochmq.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Other ways to the broker: its VIP port, TLS, traces, and request-reply. */
final class ChannelScenarios {
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";

    private ChannelScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("vip", kit -> roundTrip(kit, true, false));
        all.put("tls", kit -> roundTrip(kit, false, true));
        all.put("trace", ChannelScenarios::trace);
        all.put("request_reply", ChannelScenarios::requestReply);
    }

    private static void roundTrip(Kit kit, boolean vip, boolean tls) throws Exception {
        String topic = kit.createTopic(2);
        DefaultMQProducer producer = kit.clients.producer("P_" + kit.name);
        producer.setVipChannelEnabled(vip);
        producer.setUseTLS(tls);
        kit.onClose(producer::shutdown);
        producer.start();
        List<MessageExt> received = ConsumeScenarios.list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setVipChannelEnabled(vip);
        consumer.setUseTLS(tls);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(ConsumeScenarios.collect(received));
        consumer.start();
        for (int i = 0; i < 30; i++) {
            producer.send(Kit.message(topic, "road-" + i));
        }
        // Larger than a TLS record and than a socket buffer.
        byte[] large = new byte[600_000];
        new java.util.Random(3).nextBytes(large);
        producer.send(new Message(topic, large));
        ConsumeScenarios.receive(received, 31);
        kit.fact("sent_crc", Kit.crc(large));
        kit.fact("received", Kit.describe(new ArrayList<>(received)));
    }

    private static void trace(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        DefaultMQProducer producer = kit.clients.producer("P_trace");
        producer.setEnableTrace(true);
        kit.onClose(producer::shutdown);
        producer.start();
        List<MessageExt> received = ConsumeScenarios.list();
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.setEnableTrace(true);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(ConsumeScenarios.collect(received));
        consumer.start();
        List<String> ids = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            ids.add(producer.send(Kit.message(topic, "traced-" + i)).getMsgId());
        }
        ConsumeScenarios.receive(received, 5);
        kit.fact("received", ConsumeScenarios.texts(received));
        kit.fact("ids", ids);
        List<String> traces = new ArrayList<>();
        Kit.awaitQuietly(90_000, () -> {
            traces.clear();
            for (MessageExt message : kit.drain(TRACE_TOPIC, 1, 1_000)) {
                traces.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            String all = String.join("\n", traces);
            return ids.stream().allMatch(all::contains) && all.contains("Pub") && all.contains("SubAfter");
        });
        String all = String.join("\n", traces);
        kit.fact("traced", ids.stream().filter(all::contains).toList());
        kit.fact("kinds", List.of("Pub", "SubBefore", "SubAfter").stream().filter(all::contains).toList());
    }

    /**
     * The 5.3.3 client calls the callback once with null when the send is answered and again with the reply; the second
     * call is the broker's doing.
     */
    private static void requestReply(Kit kit) throws Exception {
        String topic = kit.createTopic(2);
        DefaultMQProducer replier = kit.clients.producer("P_replier");
        kit.onClose(replier::shutdown);
        replier.start();
        List<Map<String, Object>> asked = Collections.synchronizedList(new ArrayList<>());
        List<String> replyErrors = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                asked.add(Kit.describe(message));
                try {
                    byte[] answer = ("answer to " + Kit.text(message)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, answer), 60_000);
                } catch (Exception error) {
                    replyErrors.add(error.toString());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asker = kit.clients.producer("P_asker");
        kit.onClose(asker::shutdown);
        asker.start();
        // The replier's route to the reply goes by the asker's heartbeat.
        asker.send(Kit.message(topic + "_warm", "warm"));
        asker.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        List<String> answers = Collections.synchronizedList(new ArrayList<>());
        List<Map<String, Object>> described = Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < 3; i++) {
            asker.request(Kit.message(topic, "question-" + i), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    if (message != null) {
                        answers.add(new String(message.getBody(), StandardCharsets.UTF_8));
                        described.add(Map.of("properties", message.getProperties(), "topic", message.getTopic()));
                    }
                }

                @Override
                public void onException(Throwable error) {
                    answers.add(error.toString());
                }
            }, 60_000);
        }
        Kit.awaitQuietly(90_000, () -> answers.size() >= 3);
        kit.fact("answers", new ArrayList<>(answers));
        kit.fact("described", new ArrayList<>(described));
        kit.fact("asked", new ArrayList<>(asked));
        kit.fact("reply_errors", new ArrayList<>(replyErrors));
    }
}
