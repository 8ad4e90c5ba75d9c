import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push and a pull consumer, each in a group of its own, that write down what they saw: who, queue, offset,
 * CRC-32 of the body. Arguments: nameserver, topic, journal.
 */
public final class ChaosConsumers {
    private static final int ROUTES_MS = 500;

    public static void main(String[] args) throws Exception {
        PrintWriter journal = new PrintWriter(Files.newBufferedWriter(Path.of(args[2])), true);
        DefaultMQPushConsumer push = new DefaultMQPushConsumer("chaos-push");
        push.setNamesrvAddr(args[0]);
        push.setPollNameServerInterval(ROUTES_MS);
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.setConsumeThreadMin(2);
        push.setConsumeThreadMax(2);
        push.subscribe(args[1], "*");
        push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            write(journal, "push", messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        push.start();
        DefaultLitePullConsumer pull = new DefaultLitePullConsumer("chaos-pull");
        pull.setNamesrvAddr(args[0]);
        pull.setPollNameServerInterval(ROUTES_MS);
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(args[1], "*");
        pull.start();
        while (true) {
            write(journal, "pull", pull.poll(1000));
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
