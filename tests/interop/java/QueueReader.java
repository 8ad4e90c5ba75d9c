import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads each queue of a topic from its first to its last message. Every offset must follow the one before, and every
 * body must be of `size` bytes: the letters a to z again and again. Prints a line for each queue: its number, the first
 * offset, and the number of messages. Arguments: nameserver, topic, size.
 */
public final class QueueReader {
    private static final int BATCH = 32;

    public static void main(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("queue-readers");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args[1])) {
            long first = consumer.minOffset(queue);
            long next = first;
            while (true) {
                PullResult pulled = consumer.pull(queue, "*", next, BATCH);
                if (pulled.getPullStatus() != PullStatus.FOUND) {
                    break;
                }
                next = checked(pulled.getMsgFoundList(), queue, next, Integer.parseInt(args[2]));
            }
            if (next != consumer.maxOffset(queue)) {
                throw new IllegalStateException(queue + " ends at " + consumer.maxOffset(queue) + ", read to " + next);
            }
            System.out.println("queue " + queue.getQueueId() + " " + first + " " + (next - first));
        }
        consumer.shutdown();
    }

    private static long checked(List<MessageExt> messages, MessageQueue queue, long first, int size) {
        long next = first;
        for (MessageExt message : messages) {
            byte[] body = message.getBody();
            boolean same = body.length == size && message.getQueueOffset() == next;
            for (int at = 0; same && at < size; at++) {
                same = body[at] == (byte) ('a' + at % 26);
            }
            if (!same) {
                throw new IllegalStateException(queue + ": expected offset " + next + ", got " + message);
            }
            next++;
        }
        return next;
    }
}
