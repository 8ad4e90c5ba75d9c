import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * Consumers of the messages of MixedProducers: push consumers for retry, delay, timer and transaction, one that gets its
 * messages by POP, and ordered POP by requests of RocketMQ's client, because its push consumer does not consume in
 * order by POP. Writes a journal of what was consumed: "BODY QUEUE OFFSET ATTEMPT SEEN_MS", SEEN_MS being epoch ms.
 *
 * <p>Of "retry" and "pop" every fifth message is rejected the first time.
 *
 * <p>Arguments: nameserver, journal, broker names with commas between. The messages that are consumed in order are at
 * the first one.
 */
public final class MixedConsumers {
    private static final int ROUTES_MS = 500;
    private static final int INVISIBLE_MS = 10_000;
    private static final int CALL_MS = 5_000;
    private static final int MODE_MS = 3_000;

    public static void main(String[] args) throws Exception {
        PrintWriter journal = new PrintWriter(Files.newBufferedWriter(Path.of(args[1])), true);
        for (String kind : new String[] {"retry", "delay", "timer", "transaction"}) {
            started(() -> consuming(args[0], kind, journal, false));
        }
        DefaultMQPushConsumer popping = started(() -> consuming(args[0], "pop", journal, true));
        MQClientInstance client = popping.getDefaultMQPushConsumerImpl().getmQClientFactory();
        String[] brokers = args[2].split(",");
        Thread ordered = new Thread(() -> consumeInOrder(client, brokers[0], journal));
        ordered.start();
        while (true) {
            for (String broker : brokers) {
                keepMode(client, broker);
            }
            pause(MODE_MS);
        }
    }

    private static DefaultMQPushConsumer consuming(String nameserver, String kind, PrintWriter journal, boolean pop)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("mixed-" + kind + "-readers");
        consumer.setNamesrvAddr(nameserver);
        consumer.setPollNameServerInterval(ROUTES_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.subscribe("mixed-" + kind, "*");
        if (pop) {
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(INVISIBLE_MS);
        }
        boolean rejects = kind.equals("retry") || kind.equals("pop");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = text(message);
            if (rejects && message.getReconsumeTimes() == 0 && Integer.parseInt(body.split("-")[1]) % 5 == 0) {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            write(journal, message, body);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
        } catch (IllegalStateException error) {
            consumer.shutdown();
            throw error;
        }
        return consumer;
    }

    /** RocketMQ's consumers give up when the nameserver does not answer in time while they start. */
    private static <C> C started(Callable<C> attempt) throws Exception {
        for (int left = 20; ; left--) {
            try {
                return attempt.call();
            } catch (IllegalStateException error) {
                if (left == 0) {
                    throw error;
                }
            }
        }
    }

    /** A master that dies may take a mode along that no replica has yet. */
    private static void keepMode(MQClientInstance client, String broker) {
        try {
            String master = client.findBrokerAddressInPublish(broker);
            if (master != null) {
                client.getMQClientAPIImpl().setMessageRequestMode(
                    master, "mixed-pop", "mixed-pop-readers", MessageRequestMode.POP, 0, CALL_MS);
            }
        } catch (Exception error) {
            System.out.println("mode: " + error);
        }
    }

    private static void consumeInOrder(MQClientInstance client, String broker, PrintWriter journal) {
        while (true) {
            try {
                client.updateTopicRouteInfoFromNameServer("mixed-order");
                String master = client.findBrokerAddressInPublish(broker);
                if (master == null) {
                    pause(100);
                    continue;
                }
                PopResult found = pop(client, broker, master);
                if (found.getPopStatus() != PopStatus.FOUND) {
                    continue;
                }
                for (MessageExt message : found.getMsgFoundList()) {
                    write(journal, message, text(message));
                    acknowledge(client, master, message);
                }
            } catch (Exception error) {
                System.out.println("order: " + error);
                pause(200);
            }
        }
    }

    private static PopResult pop(MQClientInstance client, String broker, String master) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setTopic("mixed-order");
        header.setConsumerGroup("mixed-order-readers");
        header.setQueueId(-1);
        header.setMaxMsgNums(8);
        header.setInvisibleTime(INVISIBLE_MS);
        header.setPollTime(1_000);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(true);
        CompletableFuture<PopResult> result = new CompletableFuture<>();
        client.getMQClientAPIImpl().popMessageAsync(broker, master, header, CALL_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult found) {
                result.complete(found);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        });
        return result.get(2L * CALL_MS, TimeUnit.MILLISECONDS);
    }

    private static void acknowledge(MQClientInstance client, String master, MessageExt message) throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(message.getTopic());
        header.setConsumerGroup("mixed-order-readers");
        header.setQueueId(message.getQueueId());
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
        CompletableFuture<AckResult> result = new CompletableFuture<>();
        client.getMQClientAPIImpl().ackMessageAsync(master, CALL_MS, new AckCallback() {
            @Override
            public void onSuccess(AckResult acknowledged) {
                result.complete(acknowledged);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        }, header);
        result.get(2L * CALL_MS, TimeUnit.MILLISECONDS);
    }

    private static void write(PrintWriter journal, MessageExt message, String body) {
        journal.println(body + " " + message.getQueueId() + " " + message.getQueueOffset() + " "
            + message.getReconsumeTimes() + " " + System.currentTimeMillis());
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
