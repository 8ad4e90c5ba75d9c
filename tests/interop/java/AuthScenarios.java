package epochmq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Producers, consumers and an administrator with and without the right credentials. Arguments: nameserver, broker's
 * address, broker's name, then for the administrator: user and password. Prints one line: a JSON object of facts. No
 * client is shut down, which would take three seconds each: the JVM ends at once.
 */
public final class AuthScenarios {
    private static final String TOPIC = "auth-orders";
    private static final String FOREIGN = "auth-invoices";
    private static final String GROUP = "auth-readers";
    private static final int AWAIT_MS = 60_000;
    private static final Map<String, Object> FACTS = new LinkedHashMap<>();

    private final String nameserver;
    private final String broker;
    private final String brokerName;
    private final SessionCredentials administrator;
    private int clients;

    private AuthScenarios(String[] args) {
        nameserver = args[0];
        broker = args[1];
        brokerName = args[2];
        administrator = new SessionCredentials(args[3], args[4]);
    }

    private interface Step {
        Object run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        AuthScenarios scenarios = new AuthScenarios(args);
        scenarios.administration();
        scenarios.sends();
        scenarios.consumers();
        System.out.println("@@ " + JSON.toJSONString(FACTS, JSONWriter.Feature.WriteMapNullValue));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** Notes the result of a step, or the code and remark with which the broker rejected it. */
    private static void note(String name, Step step) {
        try {
            Object result = step.run();
            FACTS.put(name, result == null ? "ok" : result);
        } catch (Exception error) {
            FACTS.put(name, reason(error));
        }
    }

    private static String reason(Throwable error) {
        String found = error.toString();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                MQBrokerException rejected = (MQBrokerException) cause;
                return rejected.getResponseCode() + " " + rejected.getErrorMessage();
            }
            if (cause instanceof MQClientException && ((MQClientException) cause).getErrorMessage() != null) {
                MQClientException rejected = (MQClientException) cause;
                found = rejected.getResponseCode() + " " + rejected.getErrorMessage();
            }
        }
        return found;
    }

    private static RPCHook hook(String name, String password) {
        return new AclClientRPCHook(new SessionCredentials(name, password));
    }

    private void administration() throws Exception {
        DefaultMQAdminExt stranger = admin(null);
        note("list users unsigned", () -> stranger.listUser(broker, null));
        DefaultMQAdminExt admin = admin(new AclClientRPCHook(administrator));
        note("create topics", () -> {
            for (String topic : Arrays.asList(TOPIC, FOREIGN)) {
                admin.createTopic("TBW102", topic, 2, Collections.emptyMap());
            }
            return null;
        });
        for (String name : Arrays.asList("alice", "bob", "carol", "dave")) {
            note("create " + name, () -> {
                admin.createUser(broker, name, name + "-secret", "Normal");
                return null;
            });
        }
        note("create alice again", () -> {
            admin.createUser(broker, "alice", "other", "Normal");
            return null;
        });
        note("disable bob", () -> {
            admin.updateUser(broker, "bob", null, null, "disable");
            return null;
        });
        note("alice's acl", () -> {
            admin.createAcl(broker, "User:alice", Collections.singletonList("Topic:" + TOPIC),
                Arrays.asList("Pub", "Sub", "Get"), null, "Allow");
            admin.createAcl(broker, "User:alice", Collections.singletonList("Group:" + GROUP + "*"),
                Collections.singletonList("Sub"), null, "Allow");
            return null;
        });
        note("carol's acl", () -> {
            admin.createAcl(broker, "User:carol", Collections.singletonList("*"),
                Collections.singletonList("All"), null, "Allow");
            admin.createAcl(broker, "User:carol", Collections.singletonList("Topic:" + TOPIC),
                Collections.singletonList("Pub"), null, "Deny");
            return null;
        });
        note("dave's acl", () -> {
            admin.createAcl(broker, "User:dave", Collections.singletonList("Topic:*"),
                Collections.singletonList("All"), Collections.singletonList("10.0.0.0/8"), "Allow");
            return null;
        });
        note("acl of nobody", () -> {
            admin.createAcl(broker, "User:nobody", Collections.singletonList("*"),
                Collections.singletonList("All"), null, "Allow");
            return null;
        });
        note("acl of nothing", () -> {
            admin.createAcl(broker, "User:alice", Collections.singletonList("Nothing:x"),
                Collections.singletonList("All"), null, "Allow");
            return null;
        });
        note("acl from nowhere", () -> {
            admin.createAcl(broker, "User:alice", Collections.singletonList("*"),
                Collections.singletonList("All"), Collections.singletonList("10.0.0.0/33"), "Allow");
            return null;
        });
        note("users", () -> JSON.parse(JSON.toJSONString(admin.listUser(broker, "a"))));
        note("acl", () -> JSON.parse(JSON.toJSONString(admin.getAcl(broker, "User:alice"))));
        note("acls", () -> JSON.parse(JSON.toJSONString(admin.listAcl(broker, "User:", "Topic:" + TOPIC))));
        DefaultMQAdminExt alice = admin(hook("alice", "alice-secret"));
        note("alice creates a user", () -> {
            alice.createUser(broker, "eve", "secret", "Normal");
            return null;
        });
        note("alice creates a topic", () -> {
            alice.createTopic("TBW102", "auth-mine", 1, Collections.emptyMap());
            return null;
        });
        DefaultMQAdminExt carol = admin(hook("carol", "carol-secret"));
        note("carol creates a super user", () -> {
            carol.createUser(broker, "eve", "secret", "Super");
            return null;
        });
        note("carol deletes the administrator", () -> {
            carol.deleteUser(broker, administrator.getAccessKey());
            return null;
        });
    }

    private DefaultMQAdminExt admin(RPCHook hook) throws Exception {
        DefaultMQAdminExt made = new DefaultMQAdminExt(hook, AWAIT_MS);
        made.setNamesrvAddr(nameserver);
        made.setMqClientApiTimeout(AWAIT_MS);
        made.setInstanceName("admin-" + ++clients);
        made.start();
        return made;
    }

    private void sends() throws Exception {
        send("unsigned", null, TOPIC);
        send("unknown", hook("nobody", "secret"), TOPIC);
        send("wrong password", hook("alice", "wrong"), TOPIC);
        send("disabled", hook("bob", "bob-secret"), TOPIC);
        send("allowed", hook("alice", "alice-secret"), TOPIC);
        send("foreign topic", hook("alice", "alice-secret"), FOREIGN);
        send("denied", hook("carol", "carol-secret"), TOPIC);
        send("everything else", hook("carol", "carol-secret"), FOREIGN);
        send("wrong address", hook("dave", "dave-secret"), TOPIC);
    }

    private void send(String name, RPCHook hook, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("auth-producers", hook);
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout(AWAIT_MS);
        producer.setInstanceName("producer-" + ++clients);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(AWAIT_MS);
        producer.start();
        MessageQueue queue = new MessageQueue(topic, brokerName, 0);
        note(name + ": send", () -> {
            SendResult sent = producer.send(new Message(topic, name.getBytes(StandardCharsets.UTF_8)), queue);
            return sent.getSendStatus().name();
        });
        note(name + ": batch", () -> {
            List<Message> batch = Arrays.asList(
                new Message(topic, "one".getBytes(StandardCharsets.UTF_8)),
                new Message(topic, "two".getBytes(StandardCharsets.UTF_8)));
            return producer.send(batch, queue).getSendStatus().name();
        });
        note(name + ": one-way", () -> {
            producer.sendOneway(new Message(topic, (name + " one-way").getBytes(StandardCharsets.UTF_8)), queue);
            return null;
        });
    }

    private void consumers() throws Exception {
        pull("allowed", hook("alice", "alice-secret"), TOPIC, GROUP);
        push("allowed", hook("alice", "alice-secret"), GROUP);
    }

    /** The bodies in queue 0 of the topic, pulled by a consumer that assigns the queue to itself. */
    private void pull(String name, RPCHook hook, String topic, String group) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group + "-pull", hook);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(AWAIT_MS);
        consumer.setInstanceName("puller-" + ++clients);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        note(name + ": pull", () -> {
            MessageQueue queue = new MessageQueue(topic, brokerName, 0);
            consumer.assign(Collections.singletonList(queue));
            ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
            long deadline = System.currentTimeMillis() + AWAIT_MS;
            while (bodies.size() < 4 && System.currentTimeMillis() < deadline) {
                for (MessageExt message : consumer.poll(500)) {
                    bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                }
            }
            return bodies;
        });
    }

    private void push(String name, RPCHook hook, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(AWAIT_MS);
        consumer.setInstanceName("pusher-" + ++clients);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
        AtomicBoolean first = new AtomicBoolean(true);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8)
                    + (message.getReconsumeTimes() > 0 ? " again" : ""));
                if (first.compareAndSet(true, false)) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long deadline = System.currentTimeMillis() + AWAIT_MS;
        while (bodies.size() < 5 && System.currentTimeMillis() < deadline) {
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(20));
        }
        FACTS.put(name + ": push", bodies);
    }
}
