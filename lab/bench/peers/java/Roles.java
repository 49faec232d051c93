// Locks of Java in the words of src/roles.rs: URL TTL_MS NUMBER.

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;

class Roles {
    // The machine compiles what runs often. Over a slow link this is less, for it would take long.
    private static final int WARM = 500;
    private static final long WARM_NANOS = 2_000_000_000L;

    private static final BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in));

    interface Act {
        void run() throws Exception;
    }

    // A lock on one key, for one thread.
    record Lock(Act acquire, Act release, Callable<Boolean> held) {}

    // Makes locks by their keys.
    interface Locks {
        Lock on(String key) throws Exception;
    }

    static void run(Locks locks) throws Exception {
        Lock warm = locks.on("warm/" + ProcessHandle.current().pid());
        long enough = System.nanoTime() + WARM_NANOS;
        for (int i = 0; i < WARM && System.nanoTime() < enough; i++) {
            warm.acquire.run();
            warm.release.run();
        }
        Lock bench = locks.on("bench");
        List<Lock> stock = new ArrayList<>();
        say("ready");
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "cycle" -> cycle(locks, words);
                case "hold" -> {
                    bench.acquire.run();
                    say("acquired " + System.nanoTime());
                    input.readLine();
                    long released = System.nanoTime();
                    bench.release.run();
                    say("released " + released);
                }
                case "take" -> {
                    while (stock.size() < Integer.parseInt(words[1])) {
                        Lock lock = locks.on("stock/" + stock.size());
                        lock.acquire.run();
                        stock.add(lock);
                    }
                    say("taken");
                }
                case "held" -> {
                    int still = 0;
                    for (Lock lock : stock) {
                        still += lock.held.call() ? 1 : 0;
                    }
                    say(still);
                }
                case "cpu" -> say(cpu());
                default -> System.exit(0);
            }
        }
        System.exit(0);
    }

    private static void say(Object text) {
        System.out.println(text);
        System.out.flush();
    }

    // Processor time of this process in microseconds.
    private static double cpu() {
        var bean = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return bean.getProcessCpuTime() / 1e3;
    }

    // Counts in the buckets of src/times.rs.
    private static class Times {
        private final long[] counts = new long[640];

        void record(long nanos) {
            int bucket = (int) (Math.log(Math.max(nanos, 1)) / Math.log(2) * 16);
            counts[Math.min(bucket, counts.length - 1)]++;
        }

        void merge(Times other) {
            for (int n = 0; n < counts.length; n++) {
                counts[n] += other.counts[n];
            }
        }

        @Override
        public String toString() {
            StringBuilder text = new StringBuilder("times");
            for (int n = 0; n < counts.length; n++) {
                if (counts[n] > 0) {
                    text.append(' ').append(n).append(':').append(counts[n]);
                }
            }
            return text.toString();
        }
    }

    // Who owns the key, and what it sees while it does.
    private static class Task extends Thread {
        final Lock lock;
        final long until;
        final FileChannel scene;
        final long name;
        final Times acquires = new Times();
        final Times cycles = new Times();
        long pairs;
        long handovers;
        long overlaps;

        Task(Lock lock, long until, FileChannel scene, long name) {
            this.lock = lock;
            this.until = until;
            this.scene = scene;
            this.name = name;
        }

        private long seen() throws Exception {
            ByteBuffer bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
            scene.read(bytes, 0);
            return bytes.getLong(0);
        }

        @Override
        public void run() {
            try {
                turns();
            } catch (Exception e) {
                e.printStackTrace();
                System.exit(1);
            }
        }

        private void turns() throws Exception {
            for (long start = System.nanoTime(); start < until; ) {
                lock.acquire.run();
                long acquired = System.nanoTime();
                acquires.record(acquired - start);
                if (scene == null) {
                    pairs++;
                } else if (acquired < until) {
                    // What comes too late is no turn: then everybody gives up the contest.
                    long last = seen();
                    ByteBuffer bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
                    scene.write(bytes.putLong(0, name), 0);
                    pairs++;
                    handovers += last != name ? 1 : 0;
                    overlaps += seen() != name ? 1 : 0;
                }
                lock.release.run();
                long end = System.nanoTime();
                cycles.record(end - start);
                start = end;
            }
        }
    }

    // cycle TASKS UNTIL [SCENE NUMBER]
    private static void cycle(Locks locks, String[] words) throws Exception {
        long until = Long.parseLong(words[2]);
        FileChannel scene = words.length < 4 ? null
                : FileChannel.open(Path.of(words[3]), StandardOpenOption.READ, StandardOpenOption.WRITE);
        long process = scene == null ? 0 : Long.parseLong(words[4]);
        double before = cpu();
        long start = System.nanoTime();
        List<Task> tasks = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(words[1]); n++) {
            Lock lock = locks.on(scene == null ? "bench/" + n : "bench");
            tasks.add(new Task(lock, until, scene, 1L << 63 | process << 32 | n));
        }
        tasks.forEach(Thread::start);
        long handovers = 0;
        long overlaps = 0;
        StringBuilder pairs = new StringBuilder();
        Times acquires = new Times();
        Times cycles = new Times();
        for (Task task : tasks) {
            task.join();
            acquires.merge(task.acquires);
            cycles.merge(task.cycles);
            handovers += task.handovers;
            overlaps += task.overlaps;
            pairs.append(' ').append(task.pairs);
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        say(handovers + " " + overlaps + " " + seconds + " " + (cpu() - before) + pairs + " "
                + acquires + " " + cycles);
    }
}
