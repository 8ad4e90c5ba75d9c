import java.nio.charset.StandardCharsets;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer that starts a synchronous send at fixed intervals, whatever the results of earlier ones, like an application
 * with many threads. Arguments: nameserver, topic, milliseconds between sends. Prints a line for each finished send:
 * start and end (System.nanoTime) and its status, or the name of the exception.
 */
public final class PacedProducer {
    /** More than the number of sends that can wait at a time: at most 3 s each, one every 5 ms. */
    private static final int THREADS_MAX = 1024;

    private PacedProducer() {
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("paced");
        producer.setNamesrvAddr(args[0]);
        producer.setPollNameServerInterval(100);
        producer.start();
        byte[] body = "x".repeat(256).getBytes(StandardCharsets.UTF_8);
        ThreadPoolExecutor senders =
            new ThreadPoolExecutor(0, THREADS_MAX, 60, TimeUnit.SECONDS, new SynchronousQueue<>());
        ScheduledThreadPoolExecutor clock = new ScheduledThreadPoolExecutor(1);
        clock.scheduleAtFixedRate(() -> {
            try {
                senders.execute(() -> send(producer, new Message(args[1], body)));
            } catch (java.util.concurrent.RejectedExecutionException full) {
                say(System.nanoTime(), "NO_THREAD");
            }
        }, 0, Long.parseLong(args[2]), TimeUnit.MILLISECONDS);
    }

    private static void send(DefaultMQProducer producer, Message message) {
        long start = System.nanoTime();
        try {
            SendResult result = producer.send(message);
            say(start, result.getSendStatus().name());
        } catch (Exception failure) {
            say(start, failure.getClass().getSimpleName());
        }
    }

    private static synchronized void say(long start, String status) {
        System.out.println(start + " " + System.nanoTime() + " " + status);
        System.out.flush();
    }
}
