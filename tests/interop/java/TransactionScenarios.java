package epochmq.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions. The broker's settings make its checks come every second. */
final class TransactionScenarios {
    private static final long ARRIVAL_MS = 90_000;
    private static final String HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC";
    private static final String OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
    private static final String DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC";

    private TransactionScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("transaction_end", TransactionScenarios::end);
        all.put("transaction_check", TransactionScenarios::check);
        all.put("transaction_discard", TransactionScenarios::discard);
        all.put("transaction_other_producer", TransactionScenarios::otherProducer);
        all.put("transaction_immunity", TransactionScenarios::immunity);
        all.put("transaction_outage", TransactionScenarios::outage);
        all.put("transaction_churn", TransactionScenarios::churn);
        all.put("static_transactions", TransactionScenarios::staticTopic);
    }

    /**
     * Ends a transaction as the first word of its body says: commit, rollback, unknown, throw. A check gets the
     * second word's state from the check with the third word's number on; before that the state is unknown.
     */
    private static final class Transactions implements TransactionListener {
        final List<Map<String, Object>> checked = Collections.synchronizedList(new ArrayList<>());
        private final Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();
        /** Answers every check with commit, whatever the body says. */
        volatile boolean commitsAll;
        /** Answers no check with a state. */
        volatile boolean unsure;

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(new String(message.getBody()).split(" ")[0]);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> data = Kit.describe(message);
            data.put("transaction_id", message.getTransactionId());
            data.put("commit_log_offset", message.getCommitLogOffset());
            data.put("arrived", System.currentTimeMillis());
            checked.add(data);
            String[] words = Kit.text(message).split(" ");
            int number = checks.computeIfAbsent(Kit.text(message), key -> new AtomicInteger()).incrementAndGet();
            if (unsure) {
                return LocalTransactionState.UNKNOW;
            }
            if (commitsAll) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            boolean decided = words.length > 2 && number >= Integer.parseInt(words[2]);
            return decided ? state(words[1]) : LocalTransactionState.UNKNOW;
        }

        int checksOf(String body) {
            AtomicInteger found = checks.get(body);
            return found == null ? 0 : found.get();
        }

        private static LocalTransactionState state(String word) {
            switch (word) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                case "unknown":
                    return LocalTransactionState.UNKNOW;
                default:
                    throw new IllegalStateException(word);
            }
        }
    }

    private static TransactionMQProducer producer(Kit kit, String group, Transactions transactions) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group, Access.application());
        producer.setNamesrvAddr(kit.clients.nameserver);
        producer.setInstanceName(kit.clients.instance());
        producer.setSendMsgTimeout(60_000);
        producer.setMqClientApiTimeout(Clients.API_TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setVipChannelEnabled(false);
        producer.setHeartbeatBrokerInterval(500);
        producer.setPollNameServerInterval(500);
        producer.setTransactionListener(transactions);
        producer.start();
        kit.onClose(producer::shutdown);
        return producer;
    }

    private static Map<String, Object> send(TransactionMQProducer producer, Kit kit, String body) throws Exception {
        return send(producer, message(kit, body));
    }

    private static Message message(Kit kit, String body) {
        Message message = Kit.message(kit.topic(), "tag", body);
        message.setKeys("key");
        message.setFlag(5);
        message.putUserProperty("own", "value");
        return message;
    }

    private static Map<String, Object> send(TransactionMQProducer producer, Message message) throws Exception {
        TransactionSendResult result = producer.sendMessageInTransaction(message, null);
        Map<String, Object> data = new LinkedHashMap<>();
        data.put("body", new String(message.getBody()));
        data.put("status", result.getSendStatus().name());
        data.put("msg_id", result.getMsgId());
        data.put("transaction_id", result.getTransactionId());
        data.put("queue_id", result.getMessageQueue().getQueueId());
        data.put("queue_offset", result.getQueueOffset());
        data.put("state", result.getLocalTransactionState().name());
        return data;
    }

    /** The messages of a system topic that belong to this scenario's topic. */
    private static List<Map<String, Object>> own(Kit kit, String systemTopic) throws Exception {
        List<Map<String, Object>> found = new ArrayList<>();
        for (MessageExt message : kit.drain(systemTopic, 1)) {
            if (kit.topic().equals(message.getProperty("REAL_TOPIC"))) {
                found.add(Kit.describe(message));
            }
        }
        return found;
    }

    private static void end(Kit kit) throws Exception {
        kit.createTopic(2);
        Transactions transactions = new Transactions();
        TransactionMQProducer producer = producer(kit, kit.group(), transactions);
        List<Map<String, Object>> results = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            results.add(send(producer, kit, "commit c" + i));
            results.add(send(producer, kit, "rollback r" + i));
        }
        kit.fact("results", results);
        kit.fact("stored", Kit.describe(kit.drain(kit.topic(), 8)));
        kit.fact("half", own(kit, HALF_TOPIC));
        Kit.laterThanNow(6_000);
        kit.fact("stored_later", Kit.describe(kit.drain(kit.topic(), 8)));
        kit.fact("checked", new ArrayList<>(transactions.checked));
        List<Map<String, Object>> ops = new ArrayList<>();
        for (MessageExt op : kit.drain(OP_TOPIC, 1)) {
            ops.add(Kit.describe(op));
        }
        kit.fact("ops", ops);
        kit.fact("by_key", Kit.texts(new ArrayList<>(
            kit.producer().queryMessage(kit.topic(), "key", 32, 0, Long.MAX_VALUE).getMessageList())));
    }

    private static void check(Kit kit) throws Exception {
        kit.createTopic(2);
        Transactions transactions = new Transactions();
        TransactionMQProducer producer = producer(kit, kit.group(), transactions);
        String[] bodies = {"unknown commit 1", "unknown commit 2", "unknown rollback 2", "throw commit 1"};
        List<Map<String, Object>> results = new ArrayList<>();
        for (String body : bodies) {
            results.add(send(producer, kit, body));
        }
        kit.fact("results", results);
        Kit.awaitQuietly(ARRIVAL_MS, () -> new HashSet<>(Kit.texts(kit.drain(kit.topic(), 3))).size() >= 3);
        Kit.awaitQuietly(ARRIVAL_MS, () -> transactions.checksOf(bodies[2]) >= 2);
        kit.fact("quiet", quiet(transactions));
        kit.fact("stored", Kit.describe(kit.drain(kit.topic(), 3)));
        kit.fact("checked", new ArrayList<>(transactions.checked));
        kit.fact("half", own(kit, HALF_TOPIC));
    }

    /** Waits until the broker, which checks every second, has asked about nothing for four seconds. Returns whether it has. */
    private static boolean quiet(Transactions transactions) throws Exception {
        return Kit.awaitQuietly(ARRIVAL_MS, () -> {
            int before = transactions.checked.size();
            Kit.laterThanNow(4_000);
            return transactions.checked.size() == before;
        });
    }

    private static void discard(Kit kit) throws Exception {
        kit.createTopic(1);
        Transactions transactions = new Transactions();
        TransactionMQProducer producer = producer(kit, kit.group(), transactions);
        kit.fact("result", send(producer, kit, "unknown"));
        List<Map<String, Object>> discarded = new ArrayList<>();
        Kit.awaitTrue(ARRIVAL_MS, "the half message is discarded", () -> {
            if (!kit.queuesOf(DISCARD_TOPIC).isEmpty()) {
                discarded.clear();
                discarded.addAll(own(kit, DISCARD_TOPIC));
            }
            return !discarded.isEmpty();
        });
        kit.fact("checks", transactions.checksOf("unknown"));
        kit.fact("discarded", discarded);
        Map<?, ?> properties = (Map<?, ?>) discarded.get(0).get("properties");
        int sent = Integer.parseInt(String.valueOf(properties.get("TRANSACTION_CHECK_TIMES")));
        Kit.awaitQuietly(ARRIVAL_MS, () -> transactions.checksOf("unknown") >= sent);
        Kit.laterThanNow(3_000);
        kit.fact("checks_later", transactions.checksOf("unknown"));
        transactions.commitsAll = true;
        MQClientInstance instance = producer.getDefaultMQProducerImpl().getMqClientFactory();
        String broker = kit.queuesOf(kit.topic()).get(0).getBrokerName();
        String address = instance.findBrokerAddressInPublish(broker);
        List<MessageExt> records = kit.drain(DISCARD_TOPIC, 1);
        MessageExt record = records.get(records.size() - 1);
        for (MessageExt one : records) {
            if (kit.topic().equals(one.getProperty("REAL_TOPIC"))) {
                record = one;
            }
        }
        String id = ((org.apache.rocketmq.common.message.MessageClientExt) record).getOffsetMsgId();
        MQClientAPIImpl admin = kit.admin().getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        kit.fact("resumed", admin.resumeCheckHalfMessage(address, DISCARD_TOPIC, id, 60_000));
        kit.fact("resumed_nothing", admin.resumeCheckHalfMessage(address, DISCARD_TOPIC, "nonsense", 60_000));
        kit.fact("stored", Kit.describe(kit.drain(kit.topic(), 1)));
        kit.fact("checks_after", transactions.checksOf("unknown"));
    }

    private static void otherProducer(Kit kit) throws Exception {
        kit.createTopic(1);
        Transactions first = new Transactions();
        Transactions second = new Transactions();
        first.unsure = true;
        TransactionMQProducer gone = producer(kit, kit.group(), first);
        Transactions other = new Transactions();
        // A producer sends heartbeats to the brokers of its topics, so each one needs a topic.
        TransactionMQProducer alive = producer(kit, kit.group(), second);
        TransactionMQProducer stranger = producer(kit, kit.group() + "_other", other);
        kit.fact("committed", send(alive, kit, "commit"));
        stranger.send(Kit.message(kit.createTopic(kit.topic() + "_other", 1), "other"));
        for (TransactionMQProducer one : Arrays.asList(alive, stranger)) {
            one.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        }
        kit.fact("result", send(gone, kit, "unknown commit 1"));
        gone.shutdown();
        kit.fact("stored", Kit.describe(kit.drain(kit.topic(), 2)));
        kit.fact("checks_of_second", second.checksOf("unknown commit 1"));
        kit.fact("checks_of_other_group", other.checksOf("unknown commit 1"));
    }

    private static void immunity(Kit kit) throws Exception {
        kit.createTopic(1);
        Transactions transactions = new Transactions();
        TransactionMQProducer producer = producer(kit, kit.group(), transactions);
        Message message = message(kit, "unknown commit 1");
        message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "10");
        long sent = System.currentTimeMillis();
        kit.fact("result", send(producer, message));
        kit.fact("stored", Kit.describe(kit.drain(kit.topic(), 1)));
        kit.fact("checked", new ArrayList<>(transactions.checked));
        kit.fact("sent", sent);
        kit.fact("half", own(kit, HALF_TOPIC));
    }

    /** Transactions of every kind begin; the broker is restarted or replaced; then checks are answered. */
    private static void outage(Kit kit) throws Exception {
        kit.createTopic(2);
        Transactions transactions = new Transactions();
        transactions.unsure = true;
        TransactionMQProducer producer = producer(kit, kit.group(), transactions);
        List<Map<String, Object>> results = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            results.add(send(producer, kit, "unknown commit 1 " + i));
            results.add(send(producer, kit, "unknown rollback 1 " + i));
            results.add(send(producer, kit, "commit commit 1 " + i));
            results.add(send(producer, kit, "rollback rollback 1 " + i));
        }
        kit.fact("results", results);
        System.out.println("{\"ready\":true}");
        System.out.flush();
        System.in.read();
        transactions.unsure = false;
        kit.fact("stored", Kit.describe(kit.drain(kit.topic(), 40, 180_000)));
        Kit.awaitQuietly(ARRIVAL_MS, () -> {
            for (int i = 0; i < 20; i++) {
                if (transactions.checksOf("unknown rollback 1 " + i) == 0) {
                    return false;
                }
            }
            return true;
        });
        Kit.laterThanNow(4_000);
        kit.fact("stored_later", Kit.texts(kit.drain(kit.topic(), 40)));
        kit.fact("checked", new ArrayList<>(transactions.checked));
    }

    /**
     * Transactions of every kind begin, one after another, while brokers are killed and started again. The scenario
     * waits in the end until every acknowledged transaction that is to be committed has been delivered.
     */
    private static void churn(Kit kit) throws Exception {
        kit.createTopic(4);
        Transactions transactions = new Transactions();
        TransactionMQProducer producer = producer(kit, kit.group(), transactions);
        producer.setSendMsgTimeout(3_000);
        producer.setRetryTimesWhenSendFailed(2);
        List<String> acknowledged = new ArrayList<>();
        List<String> failed = new ArrayList<>();
        String[] kinds = {"commit commit 1 ", "rollback rollback 1 ", "unknown commit 1 ", "unknown rollback 2 "};
        System.out.println("{\"ready\":true}");
        System.out.flush();
        for (int number = 0; System.in.available() == 0; number++) {
            String body = kinds[number % kinds.length] + number;
            try {
                Object status = send(producer, kit, body).get("status");
                // With another status the client itself rolls back, whatever the listener would say.
                ("SEND_OK".equals(status) ? acknowledged : failed).add(body);
            } catch (Exception error) {
                failed.add(body);
            }
            LockSupport.parkNanos(2_000_000);
        }
        kit.fact("acknowledged", acknowledged);
        kit.fact("failed", failed);
        List<String> stored = new ArrayList<>();
        Kit.awaitQuietly(150_000, () -> {
            try {
                stored.clear();
                stored.addAll(Kit.texts(kit.drain(kit.topic(), 1)));
            } catch (Exception error) {
                return false;
            }
            Set<String> found = new HashSet<>(stored);
            return acknowledged.stream().filter(body -> body.split(" ")[1].equals("commit")).allMatch(found::contains);
        });
        kit.fact("stored", new ArrayList<>(stored));
        kit.fact("checked", transactions.checked.size());
    }

    /**
     * Transactions on a static topic with two queues. The client does not find the broker of such a queue when it ends
     * a transaction (its name is that of no broker), so the checks end all of them.
     */
    private static void staticTopic(Kit kit) throws Exception {
        Kit.awaitTrue(60_000, "the route", () -> kit.queuesOf(kit.topic()).size() == 2);
        Transactions transactions = new Transactions();
        TransactionMQProducer producer = producer(kit, kit.group(), transactions);
        List<Map<String, Object>> results = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            results.add(send(producer, kit, "commit commit 1 c" + i));
            results.add(send(producer, kit, "rollback rollback 1 r" + i));
            results.add(send(producer, kit, "unknown commit 1 u" + i));
            results.add(send(producer, kit, "unknown rollback 1 v" + i));
        }
        kit.fact("results", results);
        kit.fact("stored", Kit.texts(kit.drain(kit.topic(), 8)));
        Kit.laterThanNow(4_000);
        kit.fact("stored_later", Kit.texts(kit.drain(kit.topic(), 8)));
        kit.fact("checked", new ArrayList<>(transactions.checked));
    }
}
