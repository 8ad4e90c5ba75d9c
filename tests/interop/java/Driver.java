package epochmq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Runs client scenarios against one cluster in one JVM and prints a report for each, one JSON line; pytest checks
 * them. Arguments: NAMESERVER LIST SCENARIO…, the list in which scenarios run side by side is cut at "--": what
 * follows it runs afterwards, one after another, because it measures time.
 */
public final class Driver {
    private static final int SIDE_BY_SIDE = 12;
    private static final Map<String, Scenario> SCENARIOS = new TreeMap<>();

    static {
        SendScenarios.register(SCENARIOS);
        ConsumeScenarios.register(SCENARIOS);
        GroupScenarios.register(SCENARIOS);
        RetryScenarios.register(SCENARIOS);
        LookupScenarios.register(SCENARIOS);
        ChannelScenarios.register(SCENARIOS);
        ControlScenarios.register(SCENARIOS);
        TransactionScenarios.register(SCENARIOS);
        TimerScenarios.register(SCENARIOS);
        FilterScenarios.register(SCENARIOS);
        PopScenarios.register(SCENARIOS);
        PriorityScenarios.register(SCENARIOS);
        StaticTopicScenarios.register(SCENARIOS);
        BatchTopicScenarios.register(SCENARIOS);
        CompactionScenarios.register(SCENARIOS);
    }

    interface Scenario {
        void run(Kit kit) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Clients clients = new Clients(args[0]);
        List<String> names = Arrays.asList(args).subList(1, args.length);
        int cut = names.contains("--") ? names.indexOf("--") : names.size();
        ExecutorService pool = Executors.newFixedThreadPool(SIDE_BY_SIDE);
        List<Future<?>> running = new ArrayList<>();
        for (String name : names.subList(0, cut)) {
            running.add(pool.submit(() -> runOne(name, clients)));
        }
        for (Future<?> future : running) {
            future.get();
        }
        for (String name : names.subList(Math.min(cut + 1, names.size()), names.size())) {
            runOne(name, clients);
        }
        System.out.flush();
        // Client threads that are not daemons must not keep the JVM: every fact is written.
        Runtime.getRuntime().halt(0);
    }

    private static void runOne(String name, Clients clients) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", name);
        long started = System.nanoTime();
        Kit kit = new Kit(name, clients);
        try {
            SCENARIOS.get(name).run(kit);
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            line.put("error", trace.toString());
        } finally {
            kit.close();
        }
        line.put("facts", kit.facts());
        line.put("seconds", (System.nanoTime() - started) / 1e9);
        String text = JSON.toJSONString(
            line, JSONWriter.Feature.WriteMapNullValue, JSONWriter.Feature.WriteNonStringKeyAsString);
        synchronized (System.out) {
            System.out.println(text);
        }
    }
}
