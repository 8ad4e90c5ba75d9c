import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.parser.Feature;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.PrintStream;
import java.io.StringReader;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageVersion;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RemotingSysResponseCode;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigAndMappingSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.store.MessageExtEncoder;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.index.IndexFile;

/**
 * Prints what RocketMQ's own classes make of known values, one JSON document per section. Arguments: the output folder,
 * then the header and body classes to describe, as `header:Name=className` and `body:Name=className`.
 */
public class GoldenBytes {
    static final SerializerFeature[] OUT = {SerializerFeature.QuoteFieldNames, SerializerFeature.MapSortField,
        SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect, SerializerFeature.PrettyFormat};
    static final String[] TEXTS = {"", "a", "hello world", "TagA", "TagA || TagB", "%RETRY%group", "grüße", "消息队列", "😀 emoji",
        "7F0000016B5C18B4AAC2000000010000", "polygenelubricants", "\u0000\u0001\u0002\u001f\u007f\u0080\u009f\u00a0", "\u2028\u2029",
        "quote\" back\\slash /slash\b\t\n\f\r", "x".repeat(700), "\ufeffbom", "<tag attr='1'>&amp;"};

    public static void main(String[] args) throws Exception {
        PrintStream log = System.err;
        System.setOut(log); // only files are results
        Map<String, String> headers = new LinkedHashMap<>();
        Map<String, String> bodies = new LinkedHashMap<>();
        for (String line : Files.readAllLines(Paths.get(args[1]))) {
            String[] kindAndRest = line.split(":", 2);
            String[] nameAndClass = kindAndRest[1].split("=", 2);
            ("header".equals(kindAndRest[0]) ? headers : bodies).put(nameAndClass[0], nameAndClass[1]);
        }
        File folder = new File(args[0]);
        write(folder, "codes", codes());
        write(folder, "frames", frames());
        write(folder, "headers", headers(headers));
        write(folder, "records", records());
        write(folder, "batch", batch());
        write(folder, "properties", properties());
        write(folder, "hashes", hashes());
        write(folder, "bodies", bodies(bodies));
        write(folder, "json", json());
        write(folder, "route", route());
        write(folder, "register", register());
        System.exit(0);
    }

    static void write(File folder, String name, Object value) throws Exception {
        StringBuilder text = new StringBuilder();
        for (char c : JSON.toJSONString(value, OUT).toCharArray()) {
            text.append(c < 127 ? String.valueOf(c) : String.format("\\u%04x", (int) c));
        }
        Files.write(new File(folder, name + ".json").toPath(), text.append('\n').toString().getBytes(StandardCharsets.US_ASCII));
    }

    static String hex(byte[] bytes) {
        return UtilAll.bytes2string(bytes).toLowerCase();
    }

    static Map<String, Object> map(Object... items) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int i = 0; i < items.length; i += 2) {
            made.put((String) items[i], items[i + 1]);
        }
        return made;
    }

    // ------------------------------------------------------------------------------------------------ numbers

    static Object codes() throws Exception {
        Map<String, Object> versions = new TreeMap<>();
        for (MQVersion.Version version : MQVersion.Version.values()) {
            versions.put(version.name(), version.ordinal());
        }
        Map<String, Object> languages = new TreeMap<>();
        for (LanguageCode code : LanguageCode.values()) {
            languages.put(code.name(), code.getCode());
        }
        Map<String, Object> responses = constants(ResponseCode.class);
        responses.putAll(constants(RemotingSysResponseCode.class));
        return map("RequestCode", constants(RequestCode.class), "ResponseCode", responses, "LanguageCode", languages,
            "Version", versions, "CURRENT_VERSION", MQVersion.CURRENT_VERSION);
    }

    static Map<String, Object> constants(Class<?> cls) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (Field field : cls.getFields()) {
            if (Modifier.isStatic(field.getModifiers())) {
                found.put(field.getName(), ((Number) field.get(null)).intValue());
            }
        }
        return found;
    }

    // ------------------------------------------------------------------------------------------------ frames

    static Object frames() throws Exception {
        List<Object> all = new ArrayList<>();
        for (SerializeType type : SerializeType.values()) {
            all.add(frame(type, 105, 0, 0, null, map(), ""));
            all.add(frame(type, 310, 0, 1, null, map("a", "group", "b", "topic", "i", "KEYS\u0001k\u0002"), "body"));
            all.add(frame(type, 34, 2, 2147483647, null, map("x", "grüße 消息 😀"), "{}"));
            all.add(frame(type, 0, 1, -1, "remark \"quoted\"\n消息", map("msgId", "AB"), ""));
            all.add(frame(type, 17, 1, -2147483648, "No topic route info", null, ""));
            all.add(frame(type, 1500, 1, 7, "", map("empty", "", "one", "1"), "\u0000\u0001\u0002"));
        }
        all.add(frame(SerializeType.JSON, 200050, 0, 9, null, map("topic", "t"), ""));
        all.add(frame(SerializeType.JSON, -1000, 1, 9, null, null, ""));
        return all;
    }

    static Object frame(SerializeType type, int code, int flag, int opaque, String remark, Map<String, Object> ext, String body) {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, null);
        command.setSerializeTypeCurrentRPC(type);
        command.setLanguage(LanguageCode.JAVA);
        command.setVersion(MQVersion.CURRENT_VERSION);
        command.setFlag(flag);
        command.setOpaque(opaque);
        command.setRemark(remark);
        if (ext != null) {
            HashMap<String, String> fields = new HashMap<>();
            ext.forEach((key, value) -> fields.put(key, (String) value));
            command.setExtFields(fields);
        }
        if (!body.isEmpty()) {
            command.setBody(body.getBytes(StandardCharsets.UTF_8));
        }
        ByteBuffer buffer = command.encode();
        byte[] frame = new byte[buffer.remaining()];
        buffer.get(frame);
        return map("serialize", type.name(), "code", code, "flag", flag, "opaque", opaque, "version", MQVersion.CURRENT_VERSION,
            "language", "JAVA", "remark", remark, "ext", ext, "body", hex(body.getBytes(StandardCharsets.UTF_8)), "frame", hex(frame));
    }

    // ------------------------------------------------------------------------------------------------ headers

    static Object headers(Map<String, String> classes) throws Exception {
        Map<String, Object> all = new TreeMap<>();
        for (Map.Entry<String, String> entry : classes.entrySet()) {
            Class<?> cls = Class.forName(entry.getValue());
            List<Object> fields = new ArrayList<>();
            CommandCustomHeader full = (CommandCustomHeader) cls.getDeclaredConstructor().newInstance();
            CommandCustomHeader bare = (CommandCustomHeader) cls.getDeclaredConstructor().newInstance();
            int at = 0;
            for (Class<?> owner = cls; owner != Object.class; owner = owner.getSuperclass()) {
                for (Field field : owner.getDeclaredFields()) {
                    if (Modifier.isStatic(field.getModifiers())) {
                        continue;
                    }
                    field.setAccessible(true);
                    Object initial = field.get(bare);
                    boolean isRequired = field.getAnnotation(CFNotNull.class) != null;
                    fields.add(map("name", field.getName(), "type", field.getType().getSimpleName(), "required", isRequired,
                        "default", initial == null || field.getName().equals("invokeTime") ? null : initial.toString()));
                    field.set(full, headerValue(field, at));
                    if (isRequired) {
                        field.set(bare, headerValue(field, at));
                    } else if (field.getName().equals("invokeTime")) {
                        field.set(bare, 0L);
                    }
                    at++;
                }
            }
            all.put(entry.getKey(), map("fields", fields, "full", net(full), "bare", net(bare)));
        }
        return all;
    }

    static Object headerValue(Field field, int at) {
        Class<?> type = field.getType();
        if (type == String.class) {
            return field.getName() + "-" + at;
        } else if (type == Integer.class || type == int.class) {
            return Integer.MAX_VALUE - at;
        } else if (type == Long.class || type == long.class) {
            return Long.MIN_VALUE + at;
        } else if (type == Boolean.class || type == boolean.class) {
            return at % 2 == 0;
        } else if (type == BoundaryType.class) {
            return BoundaryType.UPPER;
        }
        throw new IllegalArgumentException("header field of type " + type);
    }

    static Map<String, String> net(CommandCustomHeader header) {
        RemotingCommand command = RemotingCommand.createRequestCommand(1, header);
        command.makeCustomHeaderToNet();
        return new TreeMap<>(command.getExtFields());
    }

    // ------------------------------------------------------------------------------------------------ records

    static Object records() throws Exception {
        List<Object> all = new ArrayList<>();
        String[][] hosts = {{"10.1.2.3", "192.168.255.254"}, {"2001:db8::1", "10.1.2.3"}, {"10.1.2.3", "fe80::ff"}, {"::1", "2001:db8::2"}};
        for (String[] pair : hosts) {
            MessageExt message = new MessageExt();
            fill(message, pair, "Topic-1", "body of it".getBytes(StandardCharsets.UTF_8));
            message.setCommitLogOffset(1L << 40);
            message.setQueueOffset(77);
            message.setBodyCRC(UtilAll.crc32(message.getBody()));
            byte[] record = MessageDecoder.encode(message, false);
            all.add(describe("MessageDecoder.encode", message, record));
        }
        int[] lengths = {1, 127, 128, 200};
        for (int length : lengths) {
            MessageExtBrokerInner inner = new MessageExtBrokerInner();
            fill(inner, hosts[0], "t".repeat(length), new byte[] {0, -1, 127, -128});
            inner.setPropertiesString(MessageDecoder.messageProperties2String(inner.getProperties()));
            inner.setBodyCRC(UtilAll.crc32(inner.getBody()));
            inner.setVersion(length > 127 ? MessageVersion.MESSAGE_VERSION_V2 : MessageVersion.MESSAGE_VERSION_V1);
            MessageExtEncoder encoder = new MessageExtEncoder(4096, new MessageStoreConfig());
            Object refused = encoder.encode(inner);
            if (refused != null) {
                throw new IllegalStateException("refused: " + refused);
            }
            ByteBuffer buffer = encoder.getEncoderBuffer();
            byte[] record = new byte[buffer.getInt(buffer.position())];
            buffer.get(record);
            all.add(describe("MessageExtEncoder", inner, record));
        }
        List<Object> ids = new ArrayList<>();
        for (String host : new String[] {"127.0.0.1", "255.254.253.252", "2001:db8::1"}) {
            for (long offset : new long[] {0, 123456789, Long.MAX_VALUE}) {
                ids.add(map("host", host, "port", 10911, "offset", offset,
                    "id", MessageDecoder.createMessageId(new InetSocketAddress(InetAddress.getByName(host), 10911), offset)));
            }
        }
        List<Object> crcs = new ArrayList<>();
        for (String text : TEXTS) {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            ByteBuffer property = ByteBuffer.allocate(20);
            int crc = UtilAll.crc32(bytes);
            MessageDecoder.createCrc32(property, crc);
            crcs.add(map("bytes", hex(bytes), "crc", crc, "property", hex(property.array())));
        }
        Map<String, Object> flags = new TreeMap<>();
        for (Field field : MessageSysFlag.class.getFields()) {
            flags.put(field.getName(), field.getInt(null));
        }
        return map("records", all, "ids", ids, "crcs", crcs, "sysFlags", flags);
    }

    static void fill(MessageExt message, String[] hosts, String topic, byte[] body) throws Exception {
        message.setTopic(topic);
        message.setBody(body);
        message.setFlag(-5);
        message.setQueueId(3);
        message.setSysFlag(MessageSysFlag.TRANSACTION_COMMIT_TYPE);
        message.setBornTimestamp(1700000000123L);
        message.setStoreTimestamp(1700000000456L);
        message.setBornHost(new InetSocketAddress(InetAddress.getByName(hosts[0]), 54321));
        message.setStoreHost(new InetSocketAddress(InetAddress.getByName(hosts[1]), 10911));
        if (hosts[0].contains(":")) {
            message.setBornHostV6Flag();
        }
        if (hosts[1].contains(":")) {
            message.setStoreHostAddressV6Flag();
        }
        message.setReconsumeTimes(2);
        message.setPreparedTransactionOffset(4096);
        Map<String, String> properties = new LinkedHashMap<>();
        properties.put("KEYS", "k1 消息");
        properties.put("TAGS", "TagA");
        MessageAccessor.setProperties(message, properties);
    }

    static Object describe(String by, MessageExt m, byte[] record) {
        return map("by", by, "topic", m.getTopic(), "body", hex(m.getBody()), "flag", m.getFlag(), "queueId", m.getQueueId(),
            "queueOffset", m.getQueueOffset(), "physicalOffset", m.getCommitLogOffset(), "sysFlag", m.getSysFlag(),
            "bornTimestamp", m.getBornTimestamp(), "storeTimestamp", m.getStoreTimestamp(),
            "bornHost", ((InetSocketAddress) m.getBornHost()).getAddress().getHostAddress(), "bornPort", 54321,
            "storeHost", ((InetSocketAddress) m.getStoreHost()).getAddress().getHostAddress(), "storePort", 10911,
            "reconsumeTimes", m.getReconsumeTimes(), "preparedTransactionOffset", m.getPreparedTransactionOffset(),
            "properties", m.getProperties(), "bodyCrc", m.getBodyCRC(), "record", hex(record));
    }

    static Object batch() throws Exception {
        List<Message> messages = new ArrayList<>();
        List<Object> elements = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = new Message("T", ("body " + i).getBytes(StandardCharsets.UTF_8));
            message.setFlag(i - 1);
            Map<String, String> properties = new LinkedHashMap<>();
            properties.put("UNIQ_KEY", "ABC" + i);
            if (i == 1) {
                properties.put("TAGS", "消息");
            }
            MessageAccessor.setProperties(message, properties);
            messages.add(message);
            elements.add(map("body", hex(message.getBody()), "flag", message.getFlag(), "properties", properties));
        }
        return map("elements", elements, "encoded", hex(MessageDecoder.encodeMessages(messages)));
    }

    // ------------------------------------------------------------------------------------------------ properties and hashes

    static Object properties() throws Exception {
        List<Object> written = new ArrayList<>();
        Map<String, String> some = new LinkedHashMap<>();
        some.put("KEYS", "a b");
        some.put("TAGS", "TagA");
        some.put("UNIQ_KEY", "7F00000100");
        some.put("消息", "😀");
        some.put("empty", "");
        written.add(map("map", some, "text", MessageDecoder.messageProperties2String(some)));
        List<Object> read = new ArrayList<>();
        for (String text : new String[] {"", "a\u0001b\u0002", "a\u0001b", "a\u0001b\u0002\u0002c\u0001d\u0002", "a\u0001\u0002", "\u0001b\u0002",
            "a\u0002", "a\u0001b\u0001c\u0002", "a\u0001b\u0002a\u0001c\u0002", "\u0002\u0001\u0002\u0001", "ab\u0002c\u0001d", "a\u0001\u0001\u0002"}) {
            read.add(map("text", text, "map", new TreeMap<>(MessageDecoder.string2messageProperties(text))));
        }
        List<Object> files = new ArrayList<>();
        for (String text : new String[] {"a=b\n", " a = b \n", "a:b", "a b", "a\\ b=c", "# note\n! note\na=b\n", "a=b\\\n   c\n", "a=b\\\\\nc=d\n",
            "a\n", "=b\n", "a==b\n", "a=\\u6d88\\u606f\n", "a=\\t\\n\\r\\f\\x\n", "a=1\r\nb=2\rc=3", "a = \n", "\n\n  \n", "a=b\\\n#c\n", "a\\=b=c\n",
            "a\\:b : c", "a\t\t=\t\tb", "key=value with = and : and #", "a=b\\", "a=\\\n\nb=c"}) {
            Properties loaded = new Properties();
            loaded.load(new StringReader(text));
            Map<String, String> sorted = new TreeMap<>();
            loaded.forEach((key, value) -> sorted.put((String) key, (String) value));
            files.add(map("text", text, "map", sorted));
        }
        return map("written", written, "read", read, "files", files);
    }

    static Object hashes() throws Exception {
        File folder = Files.createTempDirectory("golden").toFile();
        IndexFile index = new IndexFile(folder + "/20240101000000000", 10, 10, 0, 0);
        List<Object> all = new ArrayList<>();
        for (String text : TEXTS) {
            all.add(map("text", text, "hashCode", text.hashCode(),
                "tagsCode", MessageExtBrokerInner.tagsString2tagsCode(null, text), "indexHash", index.indexKeyHashMethod(text)));
        }
        return all;
    }

    // ------------------------------------------------------------------------------------------------ bodies

    static Object bodies(Map<String, String> classes) throws Exception {
        Map<String, Object> all = new TreeMap<>();
        for (Map.Entry<String, String> entry : classes.entrySet()) {
            Class<?> cls = Class.forName(entry.getValue());
            Object filled = filled(cls, entry.getKey(), 0);
            Object bare;
            try {
                bare = cls.getDeclaredConstructor().newInstance();
            } catch (NoSuchMethodException e) {
                bare = null;
            }
            // The middle name stands for values of times: a fresh DataVersion or subscription holds the clock.
            all.put(entry.getKey(), map("full", RemotingSerializable.toJson(filled, false), "pretty", RemotingSerializable.toJson(filled, true),
                "bare", bare == null ? null : RemotingSerializable.toJson(bare, false).replaceAll("(\"timestamp\"|\"subVersion\"):1\\d{12}", "$1:0")));
        }
        return all;
    }

    static Object filled(Type type, String name, int depth) throws Exception {
        if (type instanceof ParameterizedType) {
            ParameterizedType generic = (ParameterizedType) type;
            Class<?> raw = (Class<?>) generic.getRawType();
            Type[] arguments = generic.getActualTypeArguments();
            if (Map.class.isAssignableFrom(raw)) {
                Map<Object, Object> made = raw == TreeMap.class ? new TreeMap<>() : raw == ConcurrentMap.class || raw == ConcurrentHashMap.class
                    ? new ConcurrentHashMap<>() : new HashMap<>();
                made.put(filled(arguments[0], name + "Key", depth + 1), filled(arguments[1], name, depth + 1));
                return made;
            }
            Collection<Object> made = raw == TreeSet.class ? new TreeSet<>() : Set.class.isAssignableFrom(raw) ? new HashSet<>() : new ArrayList<>();
            made.add(filled(arguments[0], name, depth + 1));
            return made;
        }
        Class<?> cls = (Class<?>) type;
        int seed = name.length();
        if (cls == String.class) {
            return name;
        } else if (cls == int.class || cls == Integer.class) {
            return seed;
        } else if (cls == long.class || cls == Long.class) {
            return (1L << 40) + seed;
        } else if (cls == double.class || cls == Double.class) {
            return seed + 0.5;
        } else if (cls == boolean.class || cls == Boolean.class) {
            return true;
        } else if (cls == AtomicLong.class) {
            return new AtomicLong(seed);
        } else if (cls == BitSet.class) {
            return BitSet.valueOf(new byte[] {5, 0, (byte) 0x80});
        } else if (cls == long[].class) {
            return new long[] {1000, 5000};
        } else if (cls == Properties.class) {
            Properties made = new Properties();
            made.put(name, "value");
            return made;
        } else if (cls.isEnum()) {
            Object[] constants = cls.getEnumConstants();
            return constants[constants.length - 1];
        }
        Object made;
        try {
            made = cls.getDeclaredConstructor().newInstance();
        } catch (NoSuchMethodException e) {
            java.lang.reflect.Constructor<?> constructor = cls.getConstructors()[0];
            Object[] arguments = new Object[constructor.getParameterCount()];
            for (int i = 0; i < arguments.length; i++) {
                Class<?> wanted = constructor.getParameterTypes()[i];
                arguments[i] = wanted == int.class || wanted == Integer.class ? (Object) 0 : wanted == long.class ? (Object) 0L
                    : wanted == boolean.class ? (Object) false : Set.class.isAssignableFrom(wanted) ? new HashSet<>()
                    : Collection.class.isAssignableFrom(wanted) ? new ArrayList<>() : Map.class.isAssignableFrom(wanted) ? new HashMap<>() : null;
            }
            made = constructor.newInstance(arguments);
        }
        for (Class<?> owner = cls; owner != null && owner != Object.class; owner = owner.getSuperclass()) {
            for (Field field : owner.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || Modifier.isTransient(field.getModifiers()) || depth > 6
                    || field.getType() == java.util.Random.class) {
                    continue;
                }
                field.setAccessible(true);
                field.set(made, filled(field.getGenericType(), field.getName(), depth + 1));
            }
        }
        return made;
    }

    // ------------------------------------------------------------------------------------------------ JSON habits

    static Object json() throws Exception {
        List<Object> strings = new ArrayList<>();
        for (String text : TEXTS) {
            strings.add(map("text", text, "plain", JSON.toJSONString(text), "browser", JSON.toJSONString(text, SerializerFeature.BrowserCompatible)));
        }
        List<Object> doubles = new ArrayList<>();
        for (double value : new double[] {0, 1, -1, 0.5, 1.0 / 3, 1e7, 12345678.9, 1e16, 1e21, 1e-3, 1e-7, Double.MAX_VALUE, Double.NaN}) {
            doubles.add(map("text", Double.toString(value), "json", JSON.toJSONString(value)));
        }
        List<Object> loose = new ArrayList<>();
        for (String text : new String[] {"{a:1}", "{'a':'b'}", "{\"a\":1,}", "[1,2,]", "{1:2,3:{4:5}}", "/* c */{\"a\":/*d*/1} // end",
            "{\"a\":\"\\x41\\u0042\\'\"}", "{\"a\":1L}", "{\"a\":-1.5e3}", "{\"a\":undefined}", "{a:[{b:1},{b:2,}],}", "{\"a\":1,\"a\":2}",
            "{\"a\":{\"b\":1},\"c\":{\"$ref\":\"$.a\"}}", "[{\"a\":1},{\"$ref\":\"$[0]\"}]", "{\"a\":[{\"b\":{}}],\"c\":{\"$ref\":\"$.a[0].b\"}}"}) {
            Object parsed = JSON.parse(text, Feature.config(JSON.DEFAULT_PARSER_FEATURE, Feature.OrderedField, true));
            loose.add(map("text", text, "standard", JSON.toJSONString(parsed, SerializerFeature.BrowserCompatible, SerializerFeature.MapSortField,
                SerializerFeature.WriteNonStringKeyAsString, SerializerFeature.DisableCircularReferenceDetect, SerializerFeature.WriteMapNullValue)));
        }
        // One object twice in a document, as it happens in ConsumeStatsList and ClusterInfo.
        ConsumeStats stats = new ConsumeStats();
        OffsetWrapper wrapper = new OffsetWrapper();
        wrapper.setBrokerOffset(9);
        stats.getOffsetTable().put(new MessageQueue("T", "b", 1), wrapper);
        Map<String, Object> shared = new LinkedHashMap<>();
        shared.put("first", Arrays.asList(stats, stats));
        shared.put("se.c-o nd", stats);
        shared.put("third", shared.get("first"));
        Map<Object, Object> integers = new TreeMap<>();
        integers.put(0, "a");
        integers.put(1, 12L);
        ConcurrentMap<String, Object> offsets = new ConcurrentHashMap<>();
        offsets.put("T@G", integers);
        return map("strings", strings, "doubles", doubles, "loose", loose, "shared", JSON.toJSONString(shared),
            "integerKeys", JSON.toJSONString(offsets), "integerKeysPretty", RemotingSerializable.toJson(map("offsetTable", offsets, "z", 1), true));
    }

    static Object route() {
        TopicRouteData route = new TopicRouteData();
        HashMap<Long, String> addresses = new HashMap<>();
        addresses.put(0L, "10.0.0.1:10911");
        addresses.put(2L, "10.0.0.2:10911");
        BrokerData broker = new BrokerData("клuster", "broker-a", addresses, true, "zone-1");
        HashMap<Long, String> others = new HashMap<>();
        others.put(1L, "10.0.0.3:10911");
        route.getBrokerDatas().add(broker);
        route.getBrokerDatas().add(new BrokerData("клuster", "broker-b", others));
        for (String name : new String[] {"broker-a", "broker-b"}) {
            QueueData queues = new QueueData();
            queues.setBrokerName(name);
            queues.setReadQueueNums(4);
            queues.setWriteQueueNums(8);
            queues.setPerm(6);
            queues.setTopicSysFlag(1);
            route.getQueueDatas().add(queues);
        }
        byte[] standard = route.encode(SerializerFeature.BrowserCompatible, SerializerFeature.QuoteFieldNames,
            SerializerFeature.SkipTransientField, SerializerFeature.MapSortField);
        return map("standard", new String(standard, StandardCharsets.UTF_8), "plain", new String(route.encode(), StandardCharsets.UTF_8));
    }

    static Object register() {
        RegisterBrokerBody body = new RegisterBrokerBody();
        TopicConfigAndMappingSerializeWrapper wrapper = body.getTopicConfigSerializeWrapper();
        DataVersion version = new DataVersion();
        version.setStateVersion(3);
        version.setTimestamp(1700000000000L);
        version.setCounter(new AtomicLong(12));
        wrapper.setDataVersion(version);
        wrapper.setMappingDataVersion(version);
        TopicConfig topic = new TopicConfig("T1", 4, 8, 6, 1);
        topic.getAttributes().put("message.type", "FIFO");
        wrapper.getTopicConfigTable().put("T1", topic);
        wrapper.getTopicConfigTable().put("T2", new TopicConfig("T2"));
        body.getFilterServerList().add("10.0.0.1:1");
        return map("topic", JSON.toJSONString(topic), "topicLine", topic.encode(), "plain", new String(body.encode(false), StandardCharsets.UTF_8),
            "compressed", hex(body.encode(true)));
    }
}
