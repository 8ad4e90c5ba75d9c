import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends messages to two light message queues, and reads both from the group's stored offset to the end. Arguments:
 * NAMESERVER BROKER TOPIC FROM COUNT. Message n is in %LMQ%all, and in %LMQ%even if n is even. Prints a line for
 * each message: queue, offset in the queue, body, INNER_MULTI_QUEUE_OFFSET; then one for each queue's end.
 */
public final class LightQueueClient {
    private static final String GROUP = "%LMQ%readers";

    private LightQueueClient() {
    }

    public static void main(String[] args) {
        ToolProcess.run(LightQueueClient::run, args);
    }

    private static void run(String[] args) throws Exception {
        int from = Integer.parseInt(args[3]);
        int count = Integer.parseInt(args[4]);
        DefaultMQProducer producer = new DefaultMQProducer("light");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(GROUP);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumerPullTimeoutMillis(60_000);
        consumer.start();
        // A message that is in no light queue creates the topic, by which the consumer finds the broker.
        while (true) {
            try {
                producer.send(new Message(args[2], "first".getBytes(StandardCharsets.UTF_8)));
                // Besides, the client learns the broker's address, which it needs for queues without a route.
                consumer.maxOffset(new MessageQueue(args[2], args[1], 0));
                break;
            } catch (Exception early) {
                Thread.sleep(100);
            }
        }
        send(producer, args[2], from);
        Thread waiting = waitForNext(consumer, new MessageQueue("%LMQ%all", args[1], 0));
        for (int number = from + 1; number < from + count; number++) {
            send(producer, args[2], number);
        }
        waiting.join(60_000);
        for (String name : new String[] {"%LMQ%all", "%LMQ%even"}) {
            read(consumer, new MessageQueue(name, args[1], 0));
        }
        consumer.shutdown();
        producer.shutdown();
    }

    private static void send(DefaultMQProducer producer, String topic, int number) throws Exception {
        Message message = new Message(topic, Integer.toString(number).getBytes(StandardCharsets.UTF_8));
        String names = number % 2 == 0 ? "%LMQ%all,%LMQ%even" : "%LMQ%all";
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_INNER_MULTI_DISPATCH, names);
        producer.send(message);
    }

    /** A pull at the end of a queue, which the next message answers. */
    private static Thread waitForNext(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long end = consumer.maxOffset(queue);
        CountDownLatch started = new CountDownLatch(1);
        Thread thread = new Thread(() -> {
            try {
                started.countDown();
                PullResult found = consumer.pullBlockIfNotFound(queue, "*", end, 1);
                System.out.println("held " + found.getPullStatus() + " " + found.getNextBeginOffset() + " " + end);
            } catch (Exception error) {
                System.out.println("held failed " + error);
            }
        });
        thread.start();
        started.await();
        return thread;
    }

    private static void read(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long offset = Math.max(consumer.fetchConsumeOffset(queue, true), 0);
        while (true) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                List<MessageExt> messages = result.getMsgFoundList();
                for (int at = 0; at < messages.size(); at++) {
                    MessageExt message = messages.get(at);
                    System.out.println("message " + queue.getTopic() + " " + (offset + at) + " "
                        + new String(message.getBody(), StandardCharsets.UTF_8) + " "
                        + message.getProperty(MessageConst.PROPERTY_INNER_MULTI_QUEUE_OFFSET));
                }
            } else if (result.getPullStatus() == PullStatus.NO_NEW_MSG) {
                break;
            }
            offset = result.getNextBeginOffset();
        }
        consumer.updateConsumeOffset(queue, offset);
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, offset, false);
        System.out.println("end " + queue.getTopic() + " " + consumer.maxOffset(queue));
    }
}
