// Redisson's RLock. Its settings are its own, but for the watchdog's where the measurement gives a ttl.

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public class RedissonLocks {
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]);
        if (Long.parseLong(args[1]) > 0) {
            config.setLockWatchdogTimeout(Long.parseLong(args[1]));
        }
        RedissonClient client = Redisson.create(config);
        Roles.run(key -> {
            RLock lock = client.getLock("redisson/" + key);
            return new Roles.Lock(lock::lock, lock::unlock, lock::isHeldByCurrentThread);
        });
    }
}
