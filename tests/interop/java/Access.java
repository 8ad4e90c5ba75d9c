package epochmq.interop;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Signs the requests of this JVM's clients as the user that a system property names (NAME:PASSWORD); a client signs
 * nothing where there is no such property.
 */
public final class Access {
    private Access() {
    }

    /** That of a program which produces and consumes. */
    public static RPCHook application() {
        return signing("epochmq.interop.application");
    }

    /** That of the test itself, which looks at what a broker has stored. */
    public static RPCHook observer() {
        return signing("epochmq.interop.observer");
    }

    /** That of a person who manages brokers. */
    public static RPCHook administrator() {
        return signing("epochmq.interop.administrator");
    }

    private static RPCHook signing(String property) {
        String user = System.getProperty(property);
        if (user == null) {
            return null;
        }
        String[] credentials = user.split(":", 2);
        return new AclClientRPCHook(new SessionCredentials(credentials[0], credentials[1]));
    }
}
