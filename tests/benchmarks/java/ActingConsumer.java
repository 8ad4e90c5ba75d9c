import java.lang.reflect.Field;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer that holds at most a few messages, so that what it consumes comes from a broker soon before. Arguments:
 * nameserver, topic, group, milliseconds that a message takes. Prints a line for each message: the time (System.nanoTime),
 * the name of the broker that had it, its queue, and its body.
 */
public final class ActingConsumer {
    private static final int ROUTES_MS = 100;

    private ActingConsumer() {
    }

    public static void main(String[] args) throws Exception {
        long pause = Long.parseLong(args[3]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setPollNameServerInterval(ROUTES_MS);
        consumer.setHeartbeatBrokerInterval(ROUTES_MS);
        pauseAfterErrors(consumer, ROUTES_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(1);
        consumer.setPullThresholdForQueue(1);
        consumer.setConsumeThreadMin(8);
        consumer.setConsumeThreadMax(8);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say(message);
                try {
                    Thread.sleep(pause);
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("started");
        Thread.currentThread().join();
    }

    /** The consumer reads its setting when it is made, and so a setter comes too late: it would pause for a second. */
    private static void pauseAfterErrors(DefaultMQPushConsumer consumer, long ms) throws Exception {
        Field pause = DefaultMQPushConsumerImpl.class.getDeclaredField("pullTimeDelayMillsWhenException");
        pause.setAccessible(true);
        pause.setLong(consumer.getDefaultMQPushConsumerImpl(), ms);
    }

    private static synchronized void say(MessageExt message) {
        System.out.println(System.nanoTime() + " " + message.getBrokerName() + " " + message.getQueueId() + " "
            + new String(message.getBody()));
        System.out.flush();
    }
}
