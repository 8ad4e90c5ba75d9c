package epochmq.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * Evaluates SQL92 expressions by RocketMQ's own evaluator. A line "E expression" compiles one and answers ok or error;
 * "M name:value …" evaluates it for a message and answers T, F, N (null) or X (an exception); "B text" answers the bits
 * of a text in the bloom filter of the default configuration; "F text" reads a consumerFilter.json and answers what
 * RocketMQ would write. Texts are in base64.
 */
public final class SqlEvaluator {
    private SqlEvaluator() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder out = new StringBuilder();
        BloomFilter bloom = BloomFilter.createByFn(20, 32);
        Expression expression = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String rest = line.length() > 2 ? line.substring(2) : "";
            switch (line.charAt(0)) {
                case 'E':
                    expression = compile(decode(rest));
                    out.append(expression == null ? "error\n" : "ok\n");
                    break;
                case 'M':
                    out.append(evaluate(expression, rest)).append('\n');
                    break;
                case 'F':
                    ConsumerFilterManager filters = new ConsumerFilterManager();
                    filters.decode(decode(rest));
                    byte[] written = filters.encode(true).getBytes(StandardCharsets.UTF_8);
                    out.append(Base64.getEncoder().encodeToString(written)).append('\n');
                    break;
                default:
                    StringBuilder bits = new StringBuilder(String.valueOf(bloom.getM()));
                    for (int position : bloom.calcBitPositions(decode(rest))) {
                        bits.append(' ').append(position);
                    }
                    out.append(bits).append('\n');
                    break;
            }
        }
        System.out.print(out);
    }

    private static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static Expression compile(String text) {
        try {
            return FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable error) {
            return null;
        }
    }

    private static char evaluate(Expression expression, String message) {
        Map<String, String> properties = new HashMap<>();
        for (String pair : message.isEmpty() ? new String[0] : message.split(" ")) {
            int cut = pair.indexOf(':');
            properties.put(decode(pair.substring(0, cut)), decode(pair.substring(cut + 1)));
        }
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Throwable error) {
            return 'X';
        }
    }
}
