import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authorization.builder.DefaultAuthorizationContextBuilder;
import org.apache.rocketmq.auth.authorization.chain.AclAuthorizationHandler;
import org.apache.rocketmq.auth.authorization.context.DefaultAuthorizationContext;
import org.apache.rocketmq.auth.authorization.enums.Decision;
import org.apache.rocketmq.auth.authorization.enums.PolicyType;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Environment;
import org.apache.rocketmq.auth.authorization.model.Policy;
import org.apache.rocketmq.auth.authorization.model.PolicyEntry;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.common.action.RocketMQAction;
import org.apache.rocketmq.common.resource.RocketMQResource;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestHeaderRegistry;

/** Records what RocketMQ's access control makes of random requests and ACLs. Argument: the file to write. */
public final class AuthVectors {
    private static final Random RANDOM = new Random(20_241_101);
    private static final String[] NAMES = {"a", "ab", "abc", "abcd", "b", "%RETRY%a"};
    private static final String[] RESOURCES = {
        "*", "Topic:*", "Topic:a*", "Topic:ab*", "Topic:abc*", "Topic:a", "Topic:ab", "Topic:abc",
        "Group:*", "Group:a*", "Group:a", "Cluster:*", "Cluster:c",
    };
    private static final String[] ADDRESSES = {"10.1.2.3", "10.1.2.4", "192.168.0.1"};
    private static final String[] RANGES = {"10.1.2.3", "10.1.2.0/24", "10.0.0.0/8", "192.168.0.0/31", "0.0.0.0/0"};
    private static final Action[] ACTIONS = {Action.PUB, Action.SUB, Action.GET, Action.ALL};

    public static void main(String[] args) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("decisions", decisions(400));
        found.put("requests", requests());
        found.put("signatures", signatures(60));
        String text = JSON.toJSONString(found, SerializerFeature.BrowserCompatible, SerializerFeature.MapSortField,
            SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect);
        Files.write(Paths.get(args[0]), (text.replace("},{", "},\n{") + "\n").getBytes(StandardCharsets.US_ASCII));
    }

    private static <T> T one(T[] choices) {
        return choices[RANDOM.nextInt(choices.length)];
    }

    private static List<Object> decisions(int count) throws Exception {
        AuthConfig config = new AuthConfig();
        config.setConfigName("vectors");
        AclAuthorizationHandler handler = new AclAuthorizationHandler(config);
        Method match = AclAuthorizationHandler.class
            .getDeclaredMethod("matchPolicyEntries", DefaultAuthorizationContext.class, Acl.class);
        match.setAccessible(true);
        List<Object> found = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            List<Policy> policies = new ArrayList<>();
            List<Object> rows = new ArrayList<>();
            for (PolicyType type : PolicyType.values()) {
                List<PolicyEntry> entries = new ArrayList<>();
                for (int n = RANDOM.nextInt(type == PolicyType.CUSTOM ? 7 : 3); n > 0; n--) {
                    String resource = one(RESOURCES);
                    Action action = one(ACTIONS);
                    String range = RANDOM.nextInt(4) == 0 ? one(RANGES) : null;
                    Decision decision = one(Decision.values());
                    entries.add(PolicyEntry.of(Resource.of(resource), Arrays.asList(action), Environment.of(range), decision));
                    rows.add(Arrays.asList(type.getName(), resource, action.getName(), range, decision.getName()));
                }
                if (!entries.isEmpty()) {
                    policies.add(Policy.of(type, entries));
                }
            }
            Resource wanted = RANDOM.nextInt(5) == 0 ? Resource.ofCluster("c")
                : RANDOM.nextInt(3) == 0 ? Resource.ofGroup(one(NAMES)) : Resource.ofTopic(one(NAMES));
            List<Action> actions = RANDOM.nextBoolean() ? Arrays.asList(Action.PUB) : Arrays.asList(Action.SUB, Action.GET);
            String address = one(ADDRESSES);
            DefaultAuthorizationContext context =
                DefaultAuthorizationContext.of(User.of("alice"), wanted, actions, address);
            PolicyEntry entry = (PolicyEntry) match.invoke(handler, context, Acl.of(User.of("alice"), policies));
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("entries", rows);
            row.put("resource", wanted.getResourceKey());
            row.put("actions", actions.stream().map(Action::getName).collect(Collectors.toList()));
            row.put("address", address);
            row.put("decides", entry == null ? null
                : Arrays.asList(entry.getResource().getResourceKey(), entry.getDecision().getName()));
            found.add(row);
        }
        return found;
    }

    /** What each request with an annotated header asks for, with all, and with some, of its resources. */
    private static List<Object> requests() throws Exception {
        AuthConfig config = new AuthConfig();
        config.setConfigName("vectors");
        config.setClusterName("c");
        RequestHeaderRegistry.getInstance().initialize();
        DefaultAuthorizationContextBuilder builder = new DefaultAuthorizationContextBuilder(config);
        EmbeddedChannel channel = new EmbeddedChannel(new ChannelInboundHandlerAdapter());
        ChannelHandlerContext context = channel.pipeline().firstContext();
        Field table = RequestHeaderRegistry.class.getDeclaredField("requestHeaderMap");
        table.setAccessible(true);
        @SuppressWarnings("unchecked")
        Map<Integer, Class<? extends CommandCustomHeader>> headers = new TreeMap<>(
            (Map<Integer, Class<? extends CommandCustomHeader>>) table.get(RequestHeaderRegistry.getInstance()));
        List<Object> found = new ArrayList<>();
        for (Map.Entry<Integer, Class<? extends CommandCustomHeader>> header : headers.entrySet()) {
            for (int round = 0; round < 3; round++) {
                RemotingCommand command = RemotingCommand.createRequestCommand(header.getKey(), null);
                command.addExtField("AccessKey", "alice");
                for (Field field : header.getValue().getDeclaredFields()) {
                    RocketMQResource resource = field.getAnnotation(RocketMQResource.class);
                    if (resource != null && round < 2) {
                        String value = one(NAMES);
                        command.addExtField(field.getName(),
                            resource.splitter().isEmpty() ? value : value + resource.splitter() + one(NAMES));
                    } else if (field.getName().equals("topicFilterType")) {
                        command.addExtField("topicFilterType", "SINGLE_TAG");
                    }
                }
                Map<String, Object> row = new LinkedHashMap<>();
                row.put("code", header.getKey());
                row.put("fields", new TreeMap<>(command.getExtFields()));
                try {
                    row.put("asks", builder.build(context, command).stream()
                        .map(one -> Arrays.asList(one.getResource().getResourceKey(),
                            one.getActions().stream().map(Action::getName).collect(Collectors.toList())))
                        .collect(Collectors.toList()));
                } catch (RuntimeException error) {
                    row.put("asks", error.getMessage());
                }
                found.add(row);
            }
        }
        return found;
    }

    private static List<Object> signatures(int count) {
        List<Object> found = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            RemotingCommand command = RemotingCommand.createRequestCommand(310, null);
            for (int n = RANDOM.nextInt(6); n > 0; n--) {
                command.addExtField(word(), word());
            }
            byte[] body = new byte[RANDOM.nextInt(12)];
            RANDOM.nextBytes(body);
            if (body.length > 0) {
                command.setBody(body);
            }
            String secret = "s" + word();
            String token = RANDOM.nextInt(3) == 0 ? word() : null;
            new AclClientRPCHook(new SessionCredentials("alice", secret, token)).doBeforeRequest("", command);
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("fields", new TreeMap<>(command.getExtFields()));
            row.put("body", Base64.getEncoder().encodeToString(body));
            row.put("secret", secret);
            found.add(row);
        }
        return found;
    }

    private static String word() {
        StringBuilder word = new StringBuilder();
        for (int n = RANDOM.nextInt(6); n >= 0; n--) {
            int kind = RANDOM.nextInt(8);
            word.appendCodePoint(kind == 0 ? 0x1F600 + RANDOM.nextInt(32) : kind == 1 ? 0xFF00 + RANDOM.nextInt(64)
                : kind == 2 ? 0xE0 + RANDOM.nextInt(32) : 'A' + RANDOM.nextInt(58));
        }
        return word.toString();
    }
}
