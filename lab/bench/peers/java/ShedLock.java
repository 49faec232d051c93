// ShedLock's JDBC provider. It does not wait for a lock, so this asks again after a pause. Where the measurement gives a
// ttl its own KeepAliveLockProvider extends the locks.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicReference;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbc.JdbcLockProvider;
import net.javacrumbs.shedlock.support.KeepAliveLockProvider;

public class ShedLock {
    private static final long PAUSE = 50;
    private static final Duration TTL = Duration.ofSeconds(30);

    public static void main(String[] args) throws Exception {
        HikariConfig config = new HikariConfig();
        // postgres://USER@HOST:PORT/DATABASE
        String[] parts = args[0].substring(args[0].indexOf("://") + 3).split("@");
        config.setJdbcUrl("jdbc:postgresql://" + parts[1]);
        config.setUsername(parts[0]);
        config.setMaximumPoolSize(64);
        config.setMinimumIdle(1);
        JdbcLockProvider plain = new JdbcLockProvider(new HikariDataSource(config));
        LockProvider provider = Long.parseLong(args[1]) > 0
                ? new KeepAliveLockProvider(plain, Executors.newScheduledThreadPool(8))
                : plain;
        Roles.run(key -> {
            AtomicReference<SimpleLock> held = new AtomicReference<>();
            return new Roles.Lock(
                    () -> held.set(polled(provider, key)),
                    () -> held.get().unlock(),
                    // Whether its row says so: nothing of ShedLock does.
                    () -> tried(provider, key).isEmpty());
        });
    }

    private static Optional<SimpleLock> tried(LockProvider provider, String key) {
        return provider.lock(new LockConfiguration(Instant.now(), key, TTL, Duration.ZERO));
    }

    private static SimpleLock polled(LockProvider provider, String key) throws Exception {
        while (true) {
            Optional<SimpleLock> got = tried(provider, key);
            if (got.isPresent()) {
                return got.get();
            }
            Thread.sleep(PAUSE);
        }
    }
}
