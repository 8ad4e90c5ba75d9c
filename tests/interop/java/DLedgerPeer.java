import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;

/** One DLedger peer: group, id, peers, store base folder, data file size. Runs until it is killed. */
public class DLedgerPeer {
    public static void main(String[] args) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.setGroup(args[0]);
        config.setSelfId(args[1]);
        config.setPeers(args[2]);
        config.setStoreBaseDir(args[3]);
        config.setMappedFileSizeForEntryData(Integer.parseInt(args[4]));
        config.setHeartBeatTimeIntervalMs(500);
        config.setEnableDiskForceClean(false);
        DLedgerServer server = new DLedgerServer(config);
        server.startup();
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
        Thread.currentThread().join();
    }
}
