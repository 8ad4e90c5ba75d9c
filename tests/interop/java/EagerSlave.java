import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;

/** RocketMQ's broker, copying its master's tables every second rather than once a minute. Arguments: as BrokerStartup. */
public final class EagerSlave {
    public static void main(String[] args) throws InterruptedException {
        BrokerController broker = BrokerStartup.start(BrokerStartup.createBrokerController(args));
        while (true) {
            Thread.sleep(1000);
            broker.getSlaveSynchronize().syncAll();
        }
    }
}
