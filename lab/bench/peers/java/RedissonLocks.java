// Redisson's RLock in the roles of the measurements: ROLE URL ...
// Its settings are its own, but for the watchdog's where the measurement gives a ttl.

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public class RedissonLocks {
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[1]);
        if (Roles.ttl(args) > 0) {
            config.setLockWatchdogTimeout(Roles.ttl(args));
        }
        RedissonClient client = Redisson.create(config);
        Roles.run(args, key -> lock(client.getLock("redisson/" + key)));
    }

    private static Roles.Lock lock(RLock lock) {
        return new Roles.Lock() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }

            @Override
            public boolean held() {
                return lock.isHeldByCurrentThread();
            }
        };
    }
}
