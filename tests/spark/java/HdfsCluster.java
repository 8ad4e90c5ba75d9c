import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.metrics2.AbstractMetric;
import org.apache.hadoop.metrics2.MetricsRecord;
import org.apache.hadoop.metrics2.impl.MetricsCollectorImpl;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * A NameNode and a DataNode on 127.0.0.1. It prints the NameNode's HTTP address, then copies a directory for
 * each line `LOCAL<tab>REMOTE` of its input, answers `copied`, and ends with its input. The answer to a line
 * `operations` are the NameNode's counters as they are; its HTTP server shows those of some seconds ago.
 */
public final class HdfsCluster {
    private static final int THREADS = 8;

    /** Copies a file, or all files below a directory. */
    private static void copy(FileSystem files, java.nio.file.Path source, Path target) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        List<Future<?>> copies = new ArrayList<>();
        try (Stream<java.nio.file.Path> found = Files.walk(source)) {
            for (java.nio.file.Path path : (Iterable<java.nio.file.Path>) found::iterator) {
                String below = source.relativize(path).toString();
                Path own = below.isEmpty() ? target : new Path(target, below);
                if (Files.isDirectory(path)) {
                    files.mkdirs(own);
                } else {
                    copies.add(threads.submit(() -> {
                        files.copyFromLocalFile(new Path(path.toUri()), own);
                        return null;
                    }));
                }
            }
            for (Future<?> one : copies) {
                one.get();
            }
        } finally {
            threads.shutdown();
        }
    }

    private static void printOperations() {
        MetricsCollectorImpl collector = new MetricsCollectorImpl();
        DefaultMetricsSystem.instance().getSource("NameNodeActivity").getMetrics(collector, true);
        StringBuilder text = new StringBuilder("operations");
        List<? extends MetricsRecord> records = collector.getRecords();
        for (MetricsRecord record : records) {
            for (AbstractMetric metric : record.metrics()) {
                text.append(' ').append(metric.name()).append('=').append(metric.value());
            }
        }
        System.out.println(text);
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setInt("dfs.replication", 1);
        configuration.set("dfs.permissions.superusergroup", "supergroup");
        File root = new File(arguments[0]);
        try (MiniDFSCluster cluster = new MiniDFSCluster.Builder(configuration, root).numDataNodes(1).build()) {
            cluster.waitActive();
            FileSystem files = cluster.getFileSystem();
            System.out.println("listening on " + cluster.getNameNode().getHttpAddress().getPort());
            BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                if (line.equals("operations")) {
                    printOperations();
                    continue;
                }
                String[] names = line.split("\t");
                Path target = new Path(names[1]);
                files.delete(target, true);
                files.mkdirs(target.getParent());
                copy(files, new File(names[0]).toPath(), target);
                System.out.println("copied " + names[1]);
            }
        }
    }
}
