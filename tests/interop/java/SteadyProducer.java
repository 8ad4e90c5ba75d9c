import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends one message after another, and prints for each when it was acknowledged, or why it was not. Arguments: nameserver,
 * milliseconds between two messages. With a third argument, a timeout in milliseconds, it sends each message once only, so
 * that no failure is hidden. It signs as the user of `Credentials`.
 */
public class SteadyProducer {
    public static void main(String[] args) throws Exception {
        long pause = Long.parseLong(args[1]);
        DefaultMQProducer producer = new DefaultMQProducer("steady", Credentials.hook());
        producer.setNamesrvAddr(args[0]);
        producer.setPollNameServerInterval(100);
        producer.setSendMsgTimeout(1000);
        if (args.length > 2) {
            producer.setSendMsgTimeout(Integer.parseInt(args[2]));
            producer.setRetryTimesWhenSendFailed(0);
        }
        producer.start();
        System.out.println("started");
        for (int number = 0; ; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            try {
                SendResult result = producer.send(new Message("orders", body));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    System.out.println("acked " + number + " " + result.getMessageQueue().getQueueId() + " "
                        + result.getQueueOffset() + " " + System.nanoTime());
                } else {
                    System.out.println("open " + number + " " + result.getSendStatus());
                }
                Thread.sleep(pause);
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                System.out.println("failed " + number + " " + error.getClass().getSimpleName() + " " + System.nanoTime() + " "
                    + String.valueOf(cause.getMessage()).lines().findFirst().orElse(""));
                Thread.sleep(Math.max(pause, 20));
            }
        }
    }
}
