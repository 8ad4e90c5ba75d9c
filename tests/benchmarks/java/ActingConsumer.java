import java.lang.reflect.Field;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/**
 * A push consumer that pulls one message at a time, and knows which address each message came from. Arguments:
 * nameserver, topic, group, the client's intervals in milliseconds: between questions for routes, before a repetition
 * of a failed pull, and after a pull. Prints a line for each message: the time (System.nanoTime), the name of the broker, the
 * address that the message was pulled from, and its body.
 */
public final class ActingConsumer {
    private static final int HEARTBEAT_MS = 1000;

    private ActingConsumer() {
    }

    public static void main(String[] args) throws Exception {
        int interval = Integer.parseInt(args[3]);
        PulledFrom pulledFrom = new PulledFrom();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], pulledFrom);
        consumer.setNamesrvAddr(args[0]);
        consumer.setPollNameServerInterval(interval);
        // Heartbeats share a thread with the questions for routes, and one that is lost with the master's connection blocks it
        // for 3 s. RocketMQ sends them every 30 s, and so few are lost.
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        pauseAfterErrors(consumer, interval);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(1);
        // Without a pause the client would have more than it consumes, and then pause for 50 ms.
        consumer.setPullInterval(interval);
        consumer.setConsumeThreadMin(8);
        consumer.setConsumeThreadMax(8);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say(message, pulledFrom.of(message));
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

    private static synchronized void say(MessageExt message, String address) {
        System.out.println(System.nanoTime() + " " + message.getBrokerName() + " " + address + " "
            + new String(message.getBody()));
        System.out.flush();
    }

    /** The addresses that messages were pulled from. The client calls it before it gives a message to the listener. */
    private static final class PulledFrom implements RPCHook {
        private final Map<String, String> addresses = new ConcurrentHashMap<>();

        @Override
        public void doBeforeRequest(String remoteAddr, RemotingCommand request) {
        }

        @Override
        public void doAfterResponse(String remoteAddr, RemotingCommand request, RemotingCommand response) {
            if (request.getCode() == RequestCode.PULL_MESSAGE && response.getCode() == ResponseCode.SUCCESS) {
                Map<String, String> fields = request.getExtFields();
                long offset = Long.parseLong(response.getExtFields().get("nextBeginOffset")) - 1;
                addresses.put(key(fields.get("topic"), fields.get("bname"), fields.get("queueId"), offset), remoteAddr);
            }
        }

        String of(MessageExt message) {
            String queue = String.valueOf(message.getQueueId());
            String address = addresses.remove(
                key(message.getTopic(), message.getBrokerName(), queue, message.getQueueOffset()));
            return String.valueOf(address);
        }

        private static String key(String topic, String brokerName, String queue, long offset) {
            return topic + " " + brokerName + " " + queue + " " + offset;
        }
    }
}
