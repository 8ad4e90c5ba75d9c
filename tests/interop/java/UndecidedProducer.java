import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends one message in a transaction and leaves the transaction open. It commits when a broker asks after a file
 * has been created. Arguments: nameserver, topic, body, file.
 */
public final class UndecidedProducer {
    private static final int ROUTES_MS = 500;
    private static final int SEND_TIMEOUT_MS = 60_000;

    public static void main(String[] args) throws Exception {
        Path decision = Paths.get(args[3]);
        TransactionMQProducer producer = new TransactionMQProducer("undecided");
        producer.setNamesrvAddr(args[0]);
        producer.setPollNameServerInterval(ROUTES_MS);
        producer.setHeartbeatBrokerInterval(ROUTES_MS);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                boolean decided = Files.exists(decision);
                System.out.println("checked " + decided);
                return decided ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        producer.sendMessageInTransaction(new Message(args[1], args[2].getBytes()), null);
        System.out.println("sent");
        Thread.currentThread().join();
    }
}
