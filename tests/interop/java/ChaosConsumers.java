import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push and a pull consumer, each in a group of its own, that write a journal of what they saw: consumer, queue,
 * offset, CRC-32 of the body. Arguments: nameserver, topic, journal.
 */
public final class ChaosConsumers {
    private static final int ROUTES_MS = 500;
    private static final int ATTEMPTS = 20;

    public static void main(String[] args) throws Exception {
        PrintWriter journal = new PrintWriter(Files.newBufferedWriter(Path.of(args[2])), true);
        started(() -> pushing(args[0], args[1], journal));
        DefaultLitePullConsumer pull = started(() -> pulling(args[0], args[1]));
        while (true) {
            write(journal, "pull", pull.poll(1000));
        }
    }

    private static DefaultMQPushConsumer pushing(String nameserver, String topic, PrintWriter journal)
            throws Exception {
        DefaultMQPushConsumer push = new DefaultMQPushConsumer("chaos-push");
        push.setNamesrvAddr(nameserver);
        push.setPollNameServerInterval(ROUTES_MS);
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.setConsumeThreadMin(2);
        push.setConsumeThreadMax(2);
        push.subscribe(topic, "*");
        push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            write(journal, "push", messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            push.start();
        } catch (IllegalStateException error) {
            push.shutdown();
            throw error;
        }
        return push;
    }

    private static DefaultLitePullConsumer pulling(String nameserver, String topic) throws Exception {
        DefaultLitePullConsumer pull = new DefaultLitePullConsumer("chaos-pull");
        pull.setNamesrvAddr(nameserver);
        pull.setPollNameServerInterval(ROUTES_MS);
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(topic, "*");
        pull.start();
        return pull;
    }

    /** RocketMQ's consumers give up when the nameserver does not answer in time while they start. */
    private static <C> C started(Callable<C> attempt) throws Exception {
        for (int left = ATTEMPTS; ; left--) {
            try {
                return attempt.call();
            } catch (IllegalStateException error) {
                if (left == 0) {
                    throw error;
                }
            }
        }
    }

    private static void write(PrintWriter journal, String who, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            CRC32 crc = new CRC32();
            crc.update(message.getBody());
            journal.println(who + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + crc.getValue());
        }
    }
}
