import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The user in the environment variables EPOCHMQ_ACCESS_KEY and EPOCHMQ_SECRET_KEY, with whose signature a client sends. */
final class Credentials {
    private Credentials() {
    }

    /** The hook that signs requests; null without a user. */
    static RPCHook hook() {
        String user = System.getenv("EPOCHMQ_ACCESS_KEY");
        return user == null ? null : new AclClientRPCHook(new SessionCredentials(user, System.getenv("EPOCHMQ_SECRET_KEY")));
    }
}
