import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.EpochEntry;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.autoswitch.AutoSwitchHAService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's store with its AutoSwitchHAService, told its role over a socket instead of by a controller.
 * Arguments: ROOT LOGFILEBYTES BROKERID HAHOST HAPORT CONTROLHOST CONTROLPORT. A line is a command, its answer
 * a line: master EPOCH [ID,ID…] | slave HAADDRESS EPOCH | write COUNT BYTES | state | stop
 */
public final class HAPeer {
    private final DefaultMessageStore store;
    private final MessageStoreConfig config;
    private final BrokerConfig broker = new BrokerConfig();
    private final AutoSwitchHAService service;
    private final long brokerId;
    private int written;

    private HAPeer(String[] args) throws Exception {
        config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMaxHashSlotNum(1000);
        config.setMaxIndexNum(4000);
        config.setEnableCompaction(false);
        config.setTimerWheelEnable(false);
        config.setHaListenPort(Integer.parseInt(args[4]));
        config.setHaSendHeartbeatInterval(500);
        config.setAllAckInSyncStateSet(true);
        brokerId = Long.parseLong(args[2]);
        config.setBrokerRole(BrokerRole.SLAVE);
        // A store in the master's role skips a record of which only a part has arrived.
        broker.setBrokerId(brokerId);
        broker.setEnableControllerMode(true);
        broker.setBrokerIP2(args[3]);
        store = new DefaultMessageStore(config, new BrokerStatsManager("interop", false), null, broker, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        service = (AutoSwitchHAService) store.getHaService();
        service.setLocalBrokerId(brokerId);
    }

    public static void main(String[] args) throws Exception {
        try (ServerSocket server = new ServerSocket(Integer.parseInt(args[6]), 4, InetAddress.getByName(args[5]))) {
            HAPeer peer = new HAPeer(args);
            while (true) {
                try (Socket socket = server.accept();
                     BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
                     PrintWriter out = new PrintWriter(socket.getOutputStream(), true)) {
                    String line = in.readLine();
                    if (line != null) {
                        out.println(peer.answer(line.split(" ")));
                    }
                }
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "master":
                Set<Long> members = new HashSet<>();
                members.add(brokerId);
                if (words.length > 2) {
                    for (String id : words[2].split(",")) {
                        members.add(Long.parseLong(id));
                    }
                }
                service.setSyncStateSet(members);
                boolean leads = service.changeToMaster(Integer.parseInt(words[1]));
                config.setBrokerRole(BrokerRole.SYNC_MASTER);
                broker.setBrokerId(0);
                return String.valueOf(leads);
            case "slave":
                config.setBrokerRole(BrokerRole.SLAVE);
                broker.setBrokerId(brokerId);
                boolean follows = service.changeToSlave("", Integer.parseInt(words[2]), brokerId);
                service.updateHaMasterAddress(words[1]);
                return String.valueOf(follows);
            case "write":
                return write(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
            case "state":
                StringBuilder epochs = new StringBuilder();
                for (EpochEntry entry : service.getEpochEntries()) {
                    epochs.append(entry.getEpoch()).append('-').append(entry.getStartOffset()).append(',');
                }
                return store.getMaxPhyOffset() + " " + store.getConfirmOffset() + " " + store.getMaxOffsetInQueue("orders", 0)
                    + " " + service.getConnectionCount().get() + " " + epochs;
            case "stop":
                store.shutdown();
                return "stopped";
            default:
                return "?";
        }
    }

    private String write(int count, int size) throws Exception {
        for (int at = 0; at < count; at++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic("orders");
            message.setQueueId(0);
            byte[] body = new byte[size];
            java.util.Arrays.fill(body, (byte) (written++ + brokerId * 31));
            message.setBody(body);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(new InetSocketAddress("127.0.0.2", 40000));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            message.setWaitStoreMsgOK(false);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, null));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                return result.getPutMessageStatus().name();
            }
        }
        return "ok";
    }
}
