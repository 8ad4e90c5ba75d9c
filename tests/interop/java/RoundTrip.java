import epochmq.interop.Access;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends some messages and receives them; prints the broker's address and the number. Settings of TLS are properties. */
public class RoundTrip {
    private static final int MESSAGES = 20;
    private static final int API_MS = 60_000;
    private static final long LIMIT_NS = 90_000_000_000L;

    public static void main(String[] args) {
        ToolProcess.run(RoundTrip::run, args);
    }

    private static void run(String[] args) throws Exception {
        String nameserver = args[0];
        String topic = args[1];
        DefaultMQProducer producer = new DefaultMQProducer("round_trip", Access.application());
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(API_MS);
        producer.setMqClientApiTimeout(API_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        TreeSet<String> sent = new TreeSet<>();
        for (int i = 0; i < MESSAGES; i++) {
            String body = topic + "-" + i;
            // The last ones are larger than a TLS record and than a socket buffer.
            String padding = i < MESSAGES - 2 ? "" : "x".repeat(600_000);
            producer.send(new Message(topic, (body + ":" + padding).getBytes(StandardCharsets.UTF_8)));
            sent.add(body);
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("round_trip_consumer", Access.application());
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(API_MS);
        consumer.setAutoCommit(false);
        // Not by a seek: this client may lose the offset of a seek that interrupts its first pull.
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.assign(queues);
        TreeSet<String> received = new TreeSet<>();
        long end = System.nanoTime() + LIMIT_NS;
        while (!received.equals(sent) && System.nanoTime() < end) {
            for (MessageExt message : consumer.poll(1_000)) {
                received.add(new String(message.getBody(), StandardCharsets.UTF_8).split(":", 2)[0]);
            }
        }
        String broker = queues.iterator().next().getBrokerName();
        String address = producer.getDefaultMQProducerImpl().getMqClientFactory().findBrokerAddressInPublish(broker);
        System.out.println("broker " + address + " received " + received.size() + " equal " + received.equals(sent));
        consumer.shutdown();
        producer.shutdown();
    }
}
