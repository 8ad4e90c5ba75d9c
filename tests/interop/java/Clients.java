package epochmq.interop;

import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** The clients all scenarios share: one producer and one bare pull consumer, each with its own connection. */
@SuppressWarnings("deprecation")
final class Clients {
    /** The timeouts are long, so that a busy machine is not taken for a broken broker. */
    static final int API_TIMEOUT_MS = 60_000;

    final String nameserver;
    final DefaultMQProducer producer;
    final DefaultMQPullConsumer puller;
    private final AtomicInteger instances = new AtomicInteger();

    Clients(String nameserver) throws Exception {
        this.nameserver = nameserver;
        producer = producer("interop_producer");
        producer.start();
        puller = new DefaultMQPullConsumer("interop_puller", Access.observer());
        puller.setNamesrvAddr(nameserver);
        puller.setInstanceName("puller");
        puller.setMqClientApiTimeout(API_TIMEOUT_MS);
        puller.setVipChannelEnabled(false);
        puller.start();
    }

    /** A producer of its own; failures are not retried, so that none is hidden. */
    DefaultMQProducer producer(String group) {
        DefaultMQProducer made = new DefaultMQProducer(group, Access.application());
        made.setNamesrvAddr(nameserver);
        made.setInstanceName(instance());
        made.setRetryTimesWhenSendFailed(0);
        made.setRetryTimesWhenSendAsyncFailed(0);
        made.setSendMsgTimeout(60_000);
        made.setMqClientApiTimeout(API_TIMEOUT_MS);
        made.setVipChannelEnabled(false);
        return made;
    }

    /** A name no other client of this JVM has; clients of one name share a connection. */
    String instance() {
        return "interop-" + ProcessHandle.current().pid() + "-" + instances.incrementAndGet();
    }
}
