// Curator's locks, as another process that does what it is told, line by line:
// KIND PATH waits for a lock of that kind, "free PATH" releases the one that is held there,
// "count PATH TIMES FILE" counts up in a file under a mutex.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

public class Peer {
    public static void main(String[] args) throws Exception {
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(args[0], 4000, 4000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        say("ready");
        Map<String, InterProcessLock> held = new HashMap<>();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order; (order = orders.readLine()) != null; ) {
            String[] words = order.split(" ", 2);
            String path = words[1];
            if (words[0].equals("free")) {
                held.remove(path).release();
                say("free");
                continue;
            }
            if (words[0].equals("count")) {
                String[] what = path.split(" ", 3);
                count(client, what[0], Integer.parseInt(what[1]), Path.of(what[2]));
                say("counted");
                continue;
            }
            boolean tries = words[0].startsWith("try-");
            InterProcessLock lock = lock(client, words[0].replace("try-", ""), path);
            if (lock.acquire(tries ? 300 : 60_000, TimeUnit.MILLISECONDS)) {
                held.put(path, lock);
                say("held");
            } else {
                say("blocked");
            }
        }
        System.exit(0);
    }

    // A counter in a file, which only the lock keeps exact.
    private static void count(CuratorFramework client, String path, int times, Path file)
            throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        for (int i = 0; i < times; i++) {
            mutex.acquire();
            int count = Integer.parseInt(Files.readString(file));
            Files.writeString(file, Integer.toString(count + 1));
            mutex.release();
        }
    }

    private static InterProcessLock lock(CuratorFramework client, String kind, String path) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(client, path);
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static void say(String text) {
        System.out.println(">" + text);
        System.out.flush();
    }
}
