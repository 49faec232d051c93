// Curator's InterProcessMutex. The token is the transaction that created its node, as Latchwork's is. The holder relies on a hold
// until the listener of its connection hears SUSPENDED or LOST, for no longer than the session lasts without another look.

import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.data.Stat;

public class Curator implements Worker.Locks {
    private final Worker worker;
    private final CuratorFramework client;
    private volatile boolean connected;
    private volatile long lostAt;
    // How often the connection was lost: a hold of an earlier count is lost.
    private volatile long count;

    private Curator(Worker worker) throws Exception {
        this.worker = worker;
        String hosts = worker.orders.get("store").substring("zk://".length()).replaceAll("[/?].*", "");
        int ttl = (int) (worker.ttl / Worker.MS);
        client = CuratorFrameworkFactory.newClient(hosts, ttl, ttl, new RetryOneTime(100));
        client.getConnectionStateListenable().addListener((framework, state) -> changed(state));
        client.start();
        if (!client.blockUntilConnected(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected within 30 s");
        }
    }

    // One thread calls this.
    private void changed(ConnectionState state) {
        if (state == ConnectionState.SUSPENDED || state == ConnectionState.LOST) {
            lostAt = worker.bootTime();
            count++;
        }
        connected = state.isConnected();
    }

    @Override
    public Worker.Hold acquire(String name, long patience) throws Exception {
        long before = count;
        Mutex mutex = new Mutex(name);
        if (!mutex.acquire(patience, TimeUnit.NANOSECONDS)) {
            return null;
        }
        try {
            long seen = worker.bootTime();
            return new Hold(mutex, before, seen, mutex.token());
        } catch (Exception e) {
            new Hold(mutex, before, 0, 0).giveUp();
            throw e;
        }
    }

    @Override
    public void close() {
        client.close();
    }

    private class Mutex extends InterProcessMutex {
        Mutex(String name) {
            super(client, "/" + name);
        }

        // The transaction that created the node, or 0 if the node is not this session's.
        long token() throws Exception {
            Stat stat = client.checkExists().forPath(getLockPath());
            long session = client.getZookeeperClient().getZooKeeper().getSessionId();
            return stat != null && stat.getEphemeralOwner() == session ? stat.getCzxid() << 10 : 0;
        }
    }

    private class Hold implements Worker.Hold {
        private final Mutex mutex;
        private final long before;
        private final long seen;
        private final long token;

        Hold(Mutex mutex, long before, long seen, long token) {
            this.mutex = mutex;
            this.before = before;
            this.seen = seen;
            this.token = token;
        }

        @Override
        public long token() {
            return token;
        }

        @Override
        public long seen() {
            return seen;
        }

        @Override
        public long check(long at) throws Worker.Lost {
            if (token == 0 || !connected || count != before) {
                throw new Worker.Lost(lostAt);
            }
            return worker.validFrom(at);
        }

        @Override
        public String release() {
            try {
                mutex.release();
                return "yes";
            } catch (Exception e) {
                System.err.println("a release: " + e);
                return "failed";
            }
        }

        // The session may live on, and the node with it.
        @Override
        public void giveUp() {
            release();
        }
    }

    public static void main(String[] args) throws Exception {
        Worker worker = new Worker(args);
        worker.run(new Curator(worker));
    }
}
