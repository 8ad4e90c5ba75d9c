import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends one message after another with a producer whose settings are RocketMQ's own, and prints the result of each. */
public final class PatientProducer {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("patient");
        producer.setNamesrvAddr(args[0]);
        if (args.length > 1) {
            producer.setRetryTimesWhenSendFailed(Integer.parseInt(args[1]));
        }
        producer.start();
        for (int number = 0; ; number++) {
            long began = System.nanoTime();
            String outcome;
            try {
                SendResult result = producer.send(new Message("orders", Integer.toString(number).getBytes(StandardCharsets.UTF_8)));
                outcome = result.getSendStatus().name();
            } catch (Exception error) {
                outcome = error.getClass().getSimpleName() + ":" + (error.getMessage() + " " + error.getCause()).replace('\n', ' ');
            }
            System.out.println("sent " + number + " " + (System.nanoTime() - began) / 1_000_000 + " " + outcome);
            Thread.sleep(1);
        }
    }
}
