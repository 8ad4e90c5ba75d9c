import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * A NameNode and a DataNode on 127.0.0.1. It prints the NameNode's HTTP address, then copies a directory for
 * each line `LOCAL<tab>REMOTE` of its input, answers `copied`, and ends with its input.
 */
public final class HdfsCluster {
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
                String[] names = line.split("\t");
                Path target = new Path(names[1]);
                files.delete(target, true);
                files.mkdirs(target.getParent());
                files.copyFromLocalFile(new Path(new File(names[0]).toURI()), target);
                System.out.println("copied " + names[1]);
            }
        }
    }
}
