// Curator's InterProcessMutex.

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

public class Curator {
    public static void main(String[] args) throws Exception {
        String[] parts = args[0].substring("zk://".length()).split("/", 2);
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(parts[0], 30_000, 5_000, new RetryOneTime(100));
        String folder = "/" + (parts.length > 1 ? parts[1] + "/" : "");
        client.start();
        client.blockUntilConnected();
        Roles.run(key -> {
            InterProcessMutex mutex = new InterProcessMutex(client, folder + key);
            return new Roles.Lock(mutex::acquire, mutex::release, mutex::isAcquiredInThisProcess);
        });
    }
}
