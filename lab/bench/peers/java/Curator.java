// Curator's InterProcessMutex in the roles of the measurements: ROLE URL ...

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

public class Curator {
    public static void main(String[] args) throws Exception {
        String[] parts = args[1].substring("zk://".length()).split("/", 2);
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(parts[0], 30_000, 5_000, new RetryOneTime(100));
        String folder = "/" + (parts.length > 1 ? parts[1] + "/" : "");
        client.start();
        client.blockUntilConnected();
        Roles.run(args, key -> lock(new InterProcessMutex(client, folder + key)));
    }

    private static Roles.Lock lock(InterProcessMutex mutex) {
        return new Roles.Lock() {
            @Override
            public void acquire() throws Exception {
                mutex.acquire();
            }

            @Override
            public void release() throws Exception {
                mutex.release();
            }

            @Override
            public boolean held() {
                return mutex.isAcquiredInThisProcess();
            }
        };
    }
}
