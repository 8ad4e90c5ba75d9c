import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages of every kind side by side, a thread for each kind: retry (consumers reject some at first), delay
 * (levels), timer, transaction, pop and order. A body is "KIND-NUMBER-DUE", DUE being the earliest time (epoch ms) at
 * which the message may be seen. The journal has a line before each send and one after it: "send KIND NUMBER" and
 * "sent KIND NUMBER OUTCOME".
 *
 * <p>Transactions by their number modulo 4: 0 commits, 1 rolls back, 2 and 3 leave it to the check, which commits 2 and
 * rolls back 3.
 *
 * <p>Arguments: nameserver, journal, pause in milliseconds.
 */
public final class MixedProducers {
    private static final String[] KINDS = {"retry", "delay", "timer", "transaction", "pop", "order"};
    private static final long[] LEVELS_MS = {1_000, 5_000, 10_000};
    private static final int TIMER_MS_MAX = 9_000;
    private static volatile boolean over;

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("mixed-producers");
        TransactionMQProducer transactions = new TransactionMQProducer("mixed-transactions");
        transactions.setTransactionListener(new ByNumber());
        for (DefaultMQProducer one : new DefaultMQProducer[] {producer, transactions}) {
            one.setNamesrvAddr(args[0]);
            one.setPollNameServerInterval(500);
            one.setHeartbeatBrokerInterval(1_000);
            one.start();
        }
        PrintWriter journal = new PrintWriter(Files.newBufferedWriter(Path.of(args[1])), true);
        List<Thread> threads = new ArrayList<>();
        for (String kind : KINDS) {
            threads.add(new Thread(() -> {
                AtomicInteger numbers = new AtomicInteger();
                while (!over) {
                    send(kind.equals("transaction") ? transactions : producer, kind, numbers.incrementAndGet(), journal);
                    pause(Long.parseLong(args[2]));
                }
            }));
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            over = true;
            threads.forEach(MixedProducers::join);
            journal.println("end");
            journal.flush();
            // The transaction producer answers checks until the process is killed.
            pause(Long.MAX_VALUE);
        }));
        threads.forEach(Thread::start);
    }

    private static void send(DefaultMQProducer producer, String kind, int number, PrintWriter journal) {
        long now = System.currentTimeMillis();
        Message message = new Message("mixed-" + kind, new byte[0]);
        long due = now;
        if (kind.equals("delay")) {
            int level = number % LEVELS_MS.length;
            message.setDelayTimeLevel(level == 0 ? 1 : level + 1);
            due = now + LEVELS_MS[level];
        } else if (kind.equals("timer")) {
            long delay = 1_000 + number * 7919L % TIMER_MS_MAX;
            due = now + delay;
            if (number % 2 == 0) {
                message.setDelayTimeMs(delay);
            } else {
                message.setDeliverTimeMs(due);
            }
        }
        message.setBody((kind + "-" + number + "-" + due).getBytes(StandardCharsets.UTF_8));
        journal.println("send " + kind + " " + number);
        String outcome;
        try {
            SendResult result = kind.equals("transaction")
                ? ((TransactionMQProducer) producer).sendMessageInTransaction(message, null)
                : producer.send(message);
            outcome = result.getSendStatus().name();
        } catch (Exception error) {
            outcome = error.getClass().getSimpleName();
        }
        journal.println("sent " + kind + " " + number + " " + outcome);
    }

    private static final class ByNumber implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            int number = number(message);
            return number % 4 >= 2 ? LocalTransactionState.UNKNOW : state(number);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return state(number(message));
        }

        private static int number(Message message) {
            return Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8).split("-")[1]);
        }

        private static LocalTransactionState state(int number) {
            return number % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
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
