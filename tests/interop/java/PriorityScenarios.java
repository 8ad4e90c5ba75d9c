package epochmq.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** Messages with a priority, which clients and brokers of RocketMQ 5.4 and later have. */
final class PriorityScenarios {
    /** What Message.setPriority sets, which the client of 5.3.3 does not have. */
    private static final String PRIORITY = "_SYS_MSG_PRIORITY_";
    private static final int QUEUES = 4;

    private PriorityScenarios() {
    }

    static void register(Map<String, Driver.Scenario> all) {
        all.put("priority_send", PriorityScenarios::send);
        all.put("priority_pop", PriorityScenarios::pop);
        all.put("priority_factor", PriorityScenarios::factor);
    }

    private static void createTopic(Kit kit) throws Exception {
        kit.createTopic(kit.topic(), QUEUES, Collections.singletonMap("+message.type", "PRIORITY"));
    }

    private static Message message(Kit kit, String body, String priority) {
        Message message = Kit.message(kit.topic(), body);
        MessageAccessor.putProperty(message, PRIORITY, priority);
        return message;
    }

    private static SendResult send(Kit kit, Message message, int queueId) throws Exception {
        String broker = kit.queuesOf(kit.topic()).get(0).getBrokerName();
        return kit.producer().send(message, new MessageQueue(kit.topic(), broker, queueId));
    }

    private static RemotingCommand pop(Kit kit, String group, int count, long invisibleMs) throws Exception {
        PopMessageRequestHeader header = PopScenarios.popHeader(kit);
        header.setConsumerGroup(group);
        header.setMaxMsgNums(count);
        header.setInvisibleTime(invisibleMs);
        return PopScenarios.pop(kit, header);
    }

    private static List<String> bodies(RemotingCommand pop) {
        return Kit.texts(PopScenarios.messages(pop));
    }

    /** Messages with all kinds of priorities, each to a queue that the client chose: queue 1. */
    private static void send(Kit kit) throws Exception {
        createTopic(kit);
        Map<String, Object> queues = new LinkedHashMap<>();
        for (String priority : new String[] {"0", "1", "2", "3", "4", "2147483647", "2147483648", "-1", "+2", "03", " 3", "x"}) {
            queues.put(priority, send(kit, message(kit, "priority " + priority, priority), 1).getMessageQueue().getQueueId());
        }
        Message ordered = message(kit, "ordered", "3");
        MessageAccessor.putProperty(ordered, "__SHARDINGKEY", "key");
        queues.put("ordered", send(kit, ordered, 1).getMessageQueue().getQueueId());
        Message delayed = message(kit, "delayed", "3");
        delayed.setDelayTimeLevel(1);
        queues.put("delayed", send(kit, delayed, 1).getMessageQueue().getQueueId());
        Message timed = message(kit, "timed", "3");
        timed.setDelayTimeMs(1000);
        queues.put("timed", send(kit, timed, 1).getMessageQueue().getQueueId());
        kit.fact("queues", queues);
        List<Map<String, Object>> stored = new ArrayList<>();
        for (MessageExt one : kit.drain(kit.topic(), queues.size())) {
            Map<String, Object> data = new LinkedHashMap<>();
            data.put("body", Kit.text(one));
            data.put("queue_id", one.getQueueId());
            data.put("priority", one.getProperty(PRIORITY));
            stored.add(data);
        }
        kit.fact("stored", stored);
    }

    /** Twice each priority from 0 to 5, lowest first; popped by threes; and one that was not acknowledged. */
    private static void pop(Kit kit) throws Exception {
        createTopic(kit);
        for (int i = 0; i < 12; i++) {
            kit.sendPatiently(message(kit, i / 2 + "." + i % 2, String.valueOf(i / 2)));
        }
        List<List<String>> popped = new ArrayList<>();
        Kit.awaitTrue(60_000, "all messages are popped", () -> {
            List<String> found = bodies(pop(kit, kit.group(), 3, 600_000));
            popped.add(found);
            return found.isEmpty();
        });
        kit.fact("popped", popped);
        String other = kit.group() + "_again";
        kit.fact("forgotten", bodies(pop(kit, other, 1, 1_000)));
        kit.fact("again", Kit.texts(kit.drain("%RETRY%" + other + "_" + kit.topic(), 1)));
        List<List<String>> rest = new ArrayList<>();
        Kit.awaitTrue(60_000, "all other messages are popped", () -> {
            List<String> found = bodies(pop(kit, other, 4, 600_000));
            rest.add(found);
            return found.isEmpty();
        });
        kit.fact("rest", rest);
    }

    private static RemotingCommand setFactor(Kit kit, String group, String factor) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setAttributes(Collections.singletonMap("+priority.factor", factor));
        MQClientInstance client = kit.producer().getDefaultMQProducerImpl().getMqClientFactory();
        String address = client.findBrokerAddressInPublish(kit.queuesOf(kit.topic()).get(0).getBrokerName());
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, null);
        request.setBody(RemotingSerializable.encode(config));
        return client.getMQClientAPIImpl().getRemotingClient().invokeSync(address, request, 60_000);
    }

    /** The first message of each of many groups, of which none has priorities, and of one that has. */
    private static void factor(Kit kit) throws Exception {
        createTopic(kit);
        for (int i = 0; i < QUEUES; i++) {
            kit.sendPatiently(message(kit, String.valueOf(i), String.valueOf(i)));
        }
        Map<String, Object> remarks = new LinkedHashMap<>();
        for (String factor : new String[] {"-1", "101", "x", "100", "0"}) {
            RemotingCommand answer = setFactor(kit, kit.group() + factor.replace("-", "minus"), factor);
            remarks.put(factor, answer.getCode() == 0 ? "" : answer.getRemark());
        }
        kit.fact("remarks", remarks);
        kit.fact("always", bodies(pop(kit, kit.group() + "100", QUEUES, 600_000)));
        List<String> first = new ArrayList<>();
        for (int i = 0; i < 24; i++) {
            String group = kit.group() + "_none_" + i;
            setFactor(kit, group, "0");
            first.addAll(bodies(pop(kit, group, 1, 600_000)));
        }
        kit.fact("first_without", first);
    }
}
