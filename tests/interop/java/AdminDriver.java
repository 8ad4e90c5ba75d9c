package epochmq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs mqadmin's own commands, unmodified, many at a time in one JVM, because starting a JVM and stopping a client
 * take seconds each. Argument: the nameserver. Every line of standard input is a batch: a JSON list of commands, each
 * a list of words, run in parallel; each batch prints one line with the outputs. A command that starts with "@" is one
 * of the actors below: clients that keep running, so that the commands have something to show.
 */
public final class AdminDriver extends MQAdminStartup {
    /** The prefix of every output line; libraries print lines of their own. */
    private static final String MARK = "@@ ";
    private static final int CLIENT_MADE_MAX_MS = 2_000;
    private static final int NAME_STEP_MS = 2;
    private static final int HURRY_MS = 100;
    private static final int AWAIT_MS = 120_000;
    private static final Semaphore TURNS = new Semaphore(4);
    private static final InheritableThreadLocal<ByteArrayOutputStream> SINK = new InheritableThreadLocal<>();
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();
    private static final Map<String, AtomicInteger> CONSUMED = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, Class<? extends SubCommand>> COMMANDS = new LinkedHashMap<>();

    public static void main(String[] args) {
        try {
            serve(args[0]);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static void serve(String nameserver) throws Exception {
        PrintStream answers = System.out;
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, nameserver);
        initCommand();
        for (SubCommand command : SUB_COMMANDS) {
            COMMANDS.put(command.commandName(), command.getClass());
        }
        System.setOut(new PrintStream(new Router(), true, StandardCharsets.UTF_8));
        System.setErr(System.out);
        Thread waker = new Thread(AdminDriver::hurryFarewells, "waker");
        waker.setDaemon(true);
        waker.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            answers.println(MARK + JSON.toJSONString(batch(JSON.parseArray(line))));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** A client that shuts down waits up to three seconds for a thread of its own that waits for an event: wakes it. */
    private static void hurryFarewells() {
        while (true) {
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(HURRY_MS));
            for (Thread thread : Thread.getAllStackTraces().keySet()) {
                if (thread.getName().startsWith("NettyEventExecutor") && isStopped(thread)) {
                    thread.interrupt();
                }
            }
        }
    }

    /** Whether a thread runs a service that is stopping. With other Java versions it is false, and they wait. */
    private static boolean isStopped(Thread thread) {
        try {
            Field target = Thread.class.getDeclaredField("target");
            target.setAccessible(true);
            return target.get(thread) instanceof ServiceThread && ((ServiceThread) target.get(thread)).isStopped();
        } catch (ReflectiveOperationException error) {
            return false;
        }
    }

    private static List<Map<String, Object>> batch(JSONArray commands) throws Exception {
        List<Map<String, Object>> results = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < commands.size(); i++) {
            String[] words = commands.getJSONArray(i).toArray(new String[0]);
            Map<String, Object> result = new LinkedHashMap<>();
            results.add(result);
            TURNS.acquire();
            Thread thread = new Thread(() -> {
                one(words, result);
                TURNS.release();
            }, words[0]);
            int clients = clients();
            thread.start();
            threads.add(thread);
            awaitClient(thread, clients);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return results;
    }

    /**
     * The tools name their clients by the millisecond, and of two clients of one name the second ends the first. So the
     * next command starts only when this one has made its client, or does without.
     */
    private static void awaitClient(Thread thread, int before) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CLIENT_MADE_MAX_MS);
        while (clients() <= before && thread.isAlive() && System.nanoTime() < deadline) {
            Thread.sleep(1);
        }
        Thread.sleep(NAME_STEP_MS);
    }

    /** How many clients have been made so far: every one takes a number of the table of all, and none gives it back. */
    private static int clients() throws Exception {
        Field index = MQClientManager.class.getDeclaredField("factoryIndexGenerator");
        index.setAccessible(true);
        return ((AtomicInteger) index.get(MQClientManager.getInstance())).get();
    }

    private static void one(String[] words, Map<String, Object> result) {
        ByteArrayOutputStream sink = new ByteArrayOutputStream();
        SINK.set(sink);
        long started = System.nanoTime();
        try {
            if (words[0].startsWith("@")) {
                act(words);
            } else {
                execute(words);
            }
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            result.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
        synchronized (sink) {
            result.put("out", sink.toString(StandardCharsets.UTF_8));
        }
        result.put("seconds", (System.nanoTime() - started) / 1e9);
    }

    private static void execute(String[] words) throws Exception {
        SubCommand command = COMMANDS.get(words[0]).getDeclaredConstructor().newInstance();
        String[] rest = java.util.Arrays.copyOfRange(words, 1, words.length);
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        CommandLine line = new DefaultParser().parse(options, rest);
        command.execute(line, options, AclUtils.getAclRPCHook(System.getenv("ROCKETMQ_HOME") + MixAll.ACL_CONF_TOOLS_FILE));
    }

    private static void act(String[] words) throws Exception {
        switch (words[0]) {
            case "@consume":
                consume(words[1], words[2], words[3], words.length > 4);
                break;
            case "@await":
                await(words[1], Integer.parseInt(words[2]));
                break;
            case "@persist":
                persist(CONSUMERS.get(words[1]).getDefaultMQPushConsumerImpl());
                break;
            case "@leave":
                CONSUMERS.remove(words[1]).shutdown();
                break;
            case "@produce":
                produce(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]));
                break;
            case "@quit":
                PRODUCERS.remove(words[1]).shutdown();
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** A push consumer GROUP of TOPIC and TAGS from the first message on; a fourth word makes it orderly. */
    private static void consume(String group, String topic, String tags, boolean orderly) throws Exception {
        AtomicInteger consumed = CONSUMED.computeIfAbsent(group, key -> new AtomicInteger());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, Access.application());
        consumer.setClientIP("client");
        consumer.setInstanceName("consumer-" + group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(topic, tags);
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                consumed.addAndGet(messages.size());
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                consumed.addAndGet(messages.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        CONSUMERS.put(group, consumer);
    }

    private static void await(String group, int count) throws Exception {
        long deadline = System.currentTimeMillis() + AWAIT_MS;
        while (CONSUMED.get(group).get() < count) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(group + " consumed " + CONSUMED.get(group) + " of " + count);
            }
            Thread.sleep(20);
        }
    }

    /** Makes a consumer commit its offsets, once it has processed every message that it received. */
    private static void persist(DefaultMQPushConsumerImpl consumer) throws Exception {
        long deadline = System.currentTimeMillis() + AWAIT_MS;
        while (consumer.consumerRunningInfo().getMqTable().values().stream().anyMatch(q -> q.getCachedMsgCount() > 0)) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("messages are left over");
            }
            Thread.sleep(20);
        }
        consumer.persistConsumerOffset();
    }

    /** Sends COUNT messages of producer GROUP to TOPIC, round robin over QUEUES queues; prints their offset message ids. */
    private static void produce(String group, String topic, int count, int queues) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(group);
        if (producer == null) {
            producer = new DefaultMQProducer(group, Access.application());
            producer.setClientIP("client");
            producer.setInstanceName("producer-" + group);
            producer.setSendMsgTimeout(AWAIT_MS); // the default of three seconds is short on a busy machine
            producer.start();
            PRODUCERS.put(group, producer);
        }
        List<MessageQueue> route = producer.fetchPublishMessageQueues(topic);
        route.sort(null);
        for (int i = 0; i < count; i++) {
            byte[] body = ("body of message " + i).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(topic, i % 2 == 0 ? "even" : "odd", "key-" + i, body);
            SendResult sent = producer.send(message, route.get(i % queues));
            System.out.println(sent.getOffsetMsgId() + " " + sent.getMsgId());
        }
    }

    /** Gives every thread, and the threads it starts, an output of its own. */
    private static final class Router extends OutputStream {
        @Override
        public void write(int octet) {
            write(new byte[] {(byte) octet}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            ByteArrayOutputStream sink = SINK.get();
            if (sink != null) {
                synchronized (sink) {
                    sink.write(bytes, offset, length);
                }
            }
        }
    }
}
