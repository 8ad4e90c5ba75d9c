package epochmq.interop;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;

/** Consumers of one group share the queues, and the remaining ones take over from those that leave. */
final class GroupScenarios {
    private static final int QUEUES = 4;
    private static final long MOVE_MS = 150_000;

    private GroupScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("takeover_shutdown", kit -> takeover(kit, false, false));
        all.put("takeover_orderly", kit -> takeover(kit, true, false));
        all.put("takeover_kill", kit -> takeover(kit, false, true));
    }

    /** The member that leaves: in this JVM, or in one of its own that can be killed. */
    private interface Member {
        int queues() throws Exception;

        void leave() throws Exception;
    }

    private static int owned(DefaultMQPushConsumer consumer, String topic) {
        return (int) consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
            .stream().filter(q -> q.getTopic().equals(topic)).count();
    }

    private static DefaultMQPushConsumer member(Kit kit, boolean orderly, Set<String> received) throws Exception {
        DefaultMQPushConsumer consumer = kit.pushConsumer(kit.group());
        consumer.subscribe(kit.topic(), "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(m -> received.add(Kit.text(m)));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(m -> received.add(Kit.text(m)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return consumer;
    }

    private static void takeover(Kit kit, boolean orderly, boolean kill) throws Exception {
        String topic = kit.createTopic(QUEUES);
        Set<String> stayed = ConcurrentHashMap.newKeySet();
        Set<String> left = ConcurrentHashMap.newKeySet();
        AtomicInteger sent = new AtomicInteger();
        AtomicBoolean sending = new AtomicBoolean(true);
        Thread feeder = new Thread(() -> {
            while (sending.get()) {
                try {
                    kit.producer().send(Kit.message(topic, "share-" + sent.get()));
                    sent.incrementAndGet();
                } catch (Exception error) {
                    kit.fact("send_error", error.toString());
                    return;
                }
                LockSupport.parkNanos(20_000_000);
            }
        });
        kit.onClose(() -> sending.set(false));
        feeder.start();
        DefaultMQPushConsumer stays = member(kit, orderly, stayed);
        Kit.awaitTrue(MOVE_MS, "one consumer has all queues", () -> owned(stays, topic) == QUEUES);
        long joined = System.nanoTime();
        Member leaves = kill ? process(kit, left) : local(kit, orderly, left);
        Kit.awaitTrue(MOVE_MS, "two consumers have half each", () ->
            owned(stays, topic) == QUEUES / 2 && leaves.queues() == QUEUES / 2);
        kit.fact("share_ms", Kit.millisSince(joined));
        int before = left.size();
        Kit.awaitTrue(MOVE_MS, "both are at work", () -> left.size() > before + 10);
        long leaving = System.nanoTime();
        leaves.leave();
        kit.fact("leave_ms", Kit.millisSince(leaving));
        Kit.awaitTrue(MOVE_MS, "the one that stays has all queues", () -> owned(stays, topic) == QUEUES);
        kit.fact("takeover_ms", Kit.millisSince(leaving));
        sending.set(false);
        feeder.join();
        Kit.awaitQuietly(MOVE_MS, () -> missing(sent.get(), stayed, left).isEmpty());
        kit.fact("sent", sent.get());
        kit.fact("missing", missing(sent.get(), stayed, left));
        kit.fact("stayed", stayed.size());
        kit.fact("left", left.size());
    }

    private static List<String> missing(int sent, Set<String> stayed, Set<String> left) {
        List<String> missing = new ArrayList<>();
        for (int i = 0; i < sent; i++) {
            if (!stayed.contains("share-" + i) && !left.contains("share-" + i)) {
                missing.add("share-" + i);
            }
        }
        return missing;
    }

    private static Member local(Kit kit, boolean orderly, Set<String> received) throws Exception {
        DefaultMQPushConsumer consumer = member(kit, orderly, received);
        return new Member() {
            @Override
            public int queues() {
                return owned(consumer, kit.topic());
            }

            @Override
            public void leave() {
                consumer.shutdown();
            }
        };
    }

    private static Member process(Kit kit, Set<String> received) throws Exception {
        List<String> command = new ArrayList<>();
        command.add(System.getProperty("java.home") + File.separator + "bin" + File.separator + "java");
        command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(Holder.class.getName(), kit.clients.nameserver, kit.topic(), kit.group()));
        Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        kit.onClose(process::destroyForcibly);
        AtomicInteger queues = new AtomicInteger();
        Thread reader = new Thread(() -> {
            try (BufferedReader lines = new BufferedReader(
                new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
                for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                    if (line.startsWith("queues ")) {
                        queues.set(Integer.parseInt(line.substring(7)));
                    } else if (line.startsWith("got ")) {
                        received.add(line.substring(4));
                    }
                }
            } catch (java.io.IOException ended) {
                // Killed, as intended.
            }
        });
        reader.setDaemon(true);
        reader.start();
        return new Member() {
            @Override
            public int queues() {
                if (!process.isAlive()) {
                    throw new AssertionError("the other consumer ended early");
                }
                return queues.get();
            }

            @Override
            public void leave() throws Exception {
                process.destroyForcibly().waitFor();
            }
        };
    }

    /** A consumer in a JVM of its own that prints its queues and messages; it ends when its standard input closes. */
    static final class Holder {
        private Holder() {
        }

        public static void main(String[] args) throws Exception {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], Access.application());
            consumer.setNamesrvAddr(args[0]);
            consumer.setMqClientApiTimeout(Clients.API_TIMEOUT_MS);
            consumer.setVipChannelEnabled(false);
            consumer.subscribe(args[1], "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(m -> say("got " + Kit.text(m)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            Thread teller = new Thread(() -> {
                while (true) {
                    say("queues " + owned(consumer, args[1]));
                    LockSupport.parkNanos(50_000_000);
                }
            });
            teller.setDaemon(true);
            teller.start();
            while (System.in.read() >= 0) {
                // Nothing is ever written to it.
            }
            Runtime.getRuntime().halt(0);
        }

        private static synchronized void say(String line) {
            System.out.println(line);
            System.out.flush();
        }
    }
}
