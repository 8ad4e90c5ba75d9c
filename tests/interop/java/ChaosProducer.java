import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends synchronously with RocketMQ's own settings, a few threads at a time, but for routes, which it asks for
 * every half second: in a test mastership moves every few seconds. Writes a line before each send and one after it.
 *
 * <p>Arguments: nameserver, topic, journal, threads, pause in milliseconds.
 */
public final class ChaosProducer {
    /** The least pause after a failed send: those to a group that is down fail at once. */
    private static final long FAILED_MS = 50;
    private static volatile boolean over;

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("chaos-producers");
        producer.setNamesrvAddr(args[0]);
        producer.setPollNameServerInterval(500);
        producer.start();
        PrintWriter journal = new PrintWriter(Files.newBufferedWriter(Path.of(args[2])), true);
        AtomicInteger numbers = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(args[3]); i++) {
            threads.add(new Thread(() -> send(producer, args[1], journal, numbers, Long.parseLong(args[4]))));
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            over = true;
            threads.forEach(ChaosProducer::join);
            journal.println("end");
        }));
        threads.forEach(Thread::start);
    }

    private static void send(
            DefaultMQProducer producer, String topic, PrintWriter journal, AtomicInteger numbers, long pauseMs) {
        while (!over) {
            int number = numbers.incrementAndGet();
            String body = "java-" + number + "-" + "x".repeat((int) (number * 7919L % 1000));
            Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
            journal.println("send " + number);
            long began = System.nanoTime();
            String outcome;
            long pause = pauseMs;
            try {
                SendResult result = producer.send(message);
                outcome = result.getSendStatus() + " " + result.getMessageQueue().getQueueId() + " "
                    + result.getQueueOffset() + " " + result.getOffsetMsgId() + " " + result.getMsgId();
            } catch (Exception error) {
                outcome = error.getClass().getSimpleName();
                pause = Math.max(pauseMs, FAILED_MS);
            }
            journal.println("sent " + number + " " + began + " " + System.nanoTime() + " " + outcome);
            try {
                Thread.sleep(pause);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private static void join(Thread thread) {
        try {
            thread.join(12_000);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
