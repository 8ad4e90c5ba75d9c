import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer that prints each message: queue, offset, attempts before, body, name of its broker. Out of order it rejects
 * messages whose body begins with `rejected`, once each. It signs as the user of `Credentials`, and stops in order when it is
 * terminated. Arguments: nameserver, topics (with commas between), group, `orderly` or `concurrent`, milliseconds that a
 * message takes.
 */
public final class SteadyConsumer {
    private static final int ROUTES_MS = 500;
    private static final String REJECTED = "rejected";

    public static void main(String[] args) throws Exception {
        long pause = Long.parseLong(args[4]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], Credentials.hook());
        consumer.setNamesrvAddr(args[0]);
        consumer.setPollNameServerInterval(ROUTES_MS);
        consumer.setHeartbeatBrokerInterval(ROUTES_MS);
        consumer.setPersistConsumerOffsetInterval(ROUTES_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        for (String topic : args[1].split(",")) {
            consumer.subscribe(topic, "*");
        }
        if (args[3].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                consume(messages, pause);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                consume(messages, pause);
                return messages.stream().anyMatch(SteadyConsumer::isRejected)
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        Runtime.getRuntime().addShutdownHook(new Thread(consumer::shutdown));
        consumer.start();
        System.out.println("started");
        Thread.currentThread().join();
    }

    private static boolean isRejected(MessageExt message) {
        return message.getReconsumeTimes() == 0 && new String(message.getBody()).startsWith(REJECTED);
    }

    private static void consume(List<MessageExt> messages, long pause) {
        for (MessageExt message : messages) {
            System.out.println("message " + message.getQueueId() + " " + message.getQueueOffset() + " "
                + message.getReconsumeTimes() + " " + new String(message.getBody()) + " " + message.getBrokerName());
            try {
                Thread.sleep(pause);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
