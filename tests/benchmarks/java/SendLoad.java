import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Threads that send synchronously through one RocketMQ producer, like an application.
 *
 * <p>Arguments: nameserver, topic, threads, body bytes, warm-up seconds, measured seconds, id of the broker's process,
 * kind of the load: `transaction` commits each message in a transaction, any other kind sends it.
 * Prints one JSON object like load.c. A send counts as failed if its status is not SEND_OK, or if it throws.
 */
public final class SendLoad {
    private static final int LATENCIES_MAX = 4_000_000;

    private enum Phase { WARM_UP, MEASURED, OVER }

    private static volatile Phase phase = Phase.WARM_UP;
    private static final AtomicLong FAILED = new AtomicLong();
    private static final AtomicLong SENT = new AtomicLong();

    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final byte[] body;
        private final int[] latenciesUs;
        private int measured;

        Sender(DefaultMQProducer producer, String topic, byte[] body, int capacity) {
            this.producer = producer;
            this.topic = topic;
            this.body = body;
            this.latenciesUs = new int[capacity];
        }

        private SendResult send() throws Exception {
            Message message = new Message(topic, "TagA", body);
            return producer instanceof TransactionMQProducer
                ? producer.sendMessageInTransaction(message, null) : producer.send(message);
        }

        @Override
        public void run() {
            while (phase != Phase.OVER) {
                long started = System.nanoTime();
                try {
                    SendResult result = send();
                    SENT.incrementAndGet();
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        FAILED.incrementAndGet();
                        continue;
                    }
                } catch (Exception error) {
                    if (FAILED.getAndIncrement() == 0) {
                        System.err.println("first failure: " + error);
                    }
                    continue;
                }
                if (phase == Phase.MEASURED && measured < latenciesUs.length) {
                    latenciesUs[measured++] = (int) ((System.nanoTime() - started) / 1000);
                }
            }
        }
    }

    /** A producer that commits every message. */
    private static TransactionMQProducer committing() {
        TransactionMQProducer producer = new TransactionMQProducer("load");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    private static double processCpuSeconds(long pid) throws Exception {
        String line = Files.readString(Path.of("/proc/" + pid + "/stat"));
        String[] fields = line.substring(line.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
    }

    private static double ownCpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() * 1e-9;
    }

    private static double percentileMs(int[] sortedUs, double share) {
        return sortedUs.length == 0 ? 0 : sortedUs[(int) Math.min(sortedUs.length - 1, sortedUs.length * share)] / 1e3;
    }

    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[2]);
        byte[] body = "x".repeat(Integer.parseInt(args[3])).getBytes(StandardCharsets.US_ASCII);
        long brokerPid = Long.parseLong(args[6]);
        DefaultMQProducer producer = args[7].equals("transaction") ? committing() : new DefaultMQProducer("load");
        producer.setNamesrvAddr(args[0]);
        producer.setVipChannelEnabled(false);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.start();

        List<Sender> senders = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            senders.add(new Sender(producer, args[1], body, LATENCIES_MAX / threads));
        }
        senders.forEach(Thread::start);
        Thread.sleep((long) (Double.parseDouble(args[4]) * 1000));
        double own = ownCpuSeconds();
        double broker = processCpuSeconds(brokerPid);
        long before = SENT.get();
        long started = System.nanoTime();
        phase = Phase.MEASURED;
        Thread.sleep((long) (Double.parseDouble(args[5]) * 1000));
        long messages = SENT.get() - before;
        double seconds = (System.nanoTime() - started) * 1e-9;
        own = ownCpuSeconds() - own;
        broker = processCpuSeconds(brokerPid) - broker;
        phase = Phase.OVER;
        for (Sender sender : senders) {
            sender.join();
        }
        producer.shutdown();

        int[] all = senders.stream().flatMapToInt(s -> Arrays.stream(s.latenciesUs, 0, s.measured)).sorted().toArray();
        System.out.printf(Locale.ROOT,
            "{\"seconds\":%.3f,\"messages\":%d,\"per_second\":%.1f,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"p999_ms\":%.4f,"
                + "\"max_ms\":%.3f,\"load_cpu_us\":%.3f,\"load_cpu_share\":%.3f,\"broker_cpu_us\":%.3f,"
                + "\"broker_cpu_share\":%.3f,\"requests\":%d,\"failed\":%d}%n",
            seconds, messages, messages / seconds, percentileMs(all, .5), percentileMs(all, .99),
            percentileMs(all, .999), percentileMs(all, 1), own * 1e6 / messages, own / seconds, broker * 1e6 / messages,
            broker / seconds, SENT.get(), FAILED.get());
        System.exit(FAILED.get() == 0 ? 0 : 5);
    }
}
