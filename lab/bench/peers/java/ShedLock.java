// ShedLock's JDBC provider in the roles of the measurements: ROLE URL ...
// ShedLock does not wait for a lock, so this asks again after a pause. In the role held its own KeepAliveLockProvider
// extends the locks.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.concurrent.Executors;
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
        String[] parts = args[1].substring(args[1].indexOf("://") + 3).split("@");
        config.setJdbcUrl("jdbc:postgresql://" + parts[1]);
        config.setUsername(parts[0]);
        config.setMaximumPoolSize(64);
        config.setMinimumIdle(1);
        JdbcLockProvider plain = new JdbcLockProvider(new HikariDataSource(config));
        LockProvider provider = args[0].equals("held")
                ? new KeepAliveLockProvider(plain, Executors.newScheduledThreadPool(8))
                : plain;
        Roles.run(args, key -> new Polled(provider, key));
    }

    private static class Polled implements Roles.Lock {
        private final LockProvider provider;
        private final String key;
        private SimpleLock held;
        private Instant since;

        Polled(LockProvider provider, String key) {
            this.provider = provider;
            this.key = key;
        }

        @Override
        public void acquire() throws Exception {
            while (true) {
                since = Instant.now();
                Optional<SimpleLock> got =
                        provider.lock(new LockConfiguration(since, key, TTL, Duration.ZERO));
                if (got.isPresent()) {
                    held = got.get();
                    return;
                }
                Thread.sleep(PAUSE);
            }
        }

        @Override
        public void release() {
            held.unlock();
        }

        // Whether its row says so: nothing of ShedLock does.
        @Override
        public boolean held() {
            return provider.lock(new LockConfiguration(Instant.now(), key, TTL, Duration.ZERO)).isEmpty();
        }
    }
}
