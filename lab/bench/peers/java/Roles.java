// What a process of a measurement does, for locks in Java. It speaks the words of the Rust child.

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

class Roles {
    // The machine compiles what runs often. Over a slow link this is less, for it would take long.
    private static final int WARM = 500;
    private static final long WARM_NANOS = 2_000_000_000L;

    private static final BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in));

    // A lock on one key, for one thread.
    interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;

        boolean held() throws Exception;
    }

    // Makes locks by their keys.
    interface Locks {
        Lock on(String key) throws Exception;
    }

    // How long a lock lives unrenewed in the role held, in milliseconds; 0 means the library's own.
    static long ttl(String[] args) {
        return args[0].equals("held") ? Long.parseLong(args[2]) : 0;
    }

    // ROLE URL ...
    static void run(String[] args, Locks locks) throws Exception {
        Lock warm = locks.on("warm/" + ProcessHandle.current().pid());
        long enough = now() + WARM_NANOS;
        for (int i = 0; i < WARM && now() < enough; i++) {
            warm.acquire();
            warm.release();
        }
        switch (args[0]) {
            case "contend":
                contend(locks, Path.of(args[2]), Integer.parseInt(args[3]), Long.parseLong(args[4]));
                break;
            case "handoff":
                handoff(locks.on("bench"));
                break;
            case "free":
                free(locks);
                break;
            case "held":
                held(locks);
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.exit(0);
    }

    private static void say(Object text) {
        System.out.println(text);
        System.out.flush();
    }

    // Nanoseconds on a clock that all processes of this machine share.
    private static long now() {
        return System.nanoTime();
    }

    // Processor time of this process in microseconds.
    private static double cpu() {
        OperatingSystemMXBean bean =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return bean.getProcessCpuTime() / 1e3;
    }

    private interface Work {
        void run() throws Exception;
    }

    private static Thread started(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception e) {
                e.printStackTrace();
                System.exit(1);
            }
        });
        thread.start();
        return thread;
    }

    // Counts in the buckets of the Rust child's times.rs.
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
    private static class Task {
        final FileChannel scene;
        final long name;
        final Times times = new Times();
        long pairs;
        long handovers;
        long overlaps;

        Task(FileChannel scene, long name) {
            this.scene = scene;
            this.name = name;
        }

        private long seen() throws Exception {
            ByteBuffer bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
            scene.read(bytes, 0);
            return bytes.getLong(0);
        }

        void work() throws Exception {
            long last = seen();
            ByteBuffer bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
            scene.write(bytes.putLong(0, name), 0);
            pairs++;
            handovers += last != name ? 1 : 0;
            overlaps += seen() != name ? 1 : 0;
        }
    }

    private static void contend(Locks locks, Path file, int count, long process)
            throws Exception {
        FileChannel scene =
                FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE);
        List<Task> tasks = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            tasks.add(new Task(scene, 1L << 63 | process << 32 | n));
        }
        say("ready");
        long until = Long.parseLong(input.readLine());
        double before = cpu();
        List<Thread> threads = new ArrayList<>();
        for (Task task : tasks) {
            Lock lock = locks.on("bench");
            threads.add(started(() -> {
                for (long start; (start = now()) < until; ) {
                    lock.acquire();
                    long end = now();
                    task.times.record(end - start);
                    // What comes too late is no turn: then everybody gives up the contest.
                    if (end < until) {
                        task.work();
                    }
                    lock.release();
                }
            }));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double took = cpu() - before;
        long handovers = 0;
        long overlaps = 0;
        StringBuilder pairs = new StringBuilder();
        Times times = new Times();
        for (Task task : tasks) {
            times.merge(task.times);
            handovers += task.handovers;
            overlaps += task.overlaps;
            pairs.append(' ').append(task.pairs);
        }
        say(handovers + " " + overlaps + " " + took + pairs + " " + times);
    }

    private static void handoff(Lock lock) throws Exception {
        say("ready");
        for (String line; (line = input.readLine()) != null; ) {
            lock.acquire();
            say("acquired " + now());
            Thread.sleep(Long.parseLong(line));
            long released = now();
            lock.release();
            say("released " + released);
        }
    }

    // For each line TASKS MILLISECONDS says how many cycles a second, the processor time of one, and
    // how long they took.
    private static void free(Locks locks) throws Exception {
        say("ready");
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            int count = Integer.parseInt(words[0]);
            double before = cpu();
            long start = now();
            long until = start + Long.parseLong(words[1]) * 1_000_000;
            long[] done = new long[count];
            Times[] took = new Times[count];
            List<Thread> threads = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                int own = n;
                Lock lock = locks.on("bench/" + n);
                Times times = new Times();
                took[n] = times;
                threads.add(started(() -> {
                    for (long begun; (begun = now()) < until; ) {
                        lock.acquire();
                        lock.release();
                        times.record(now() - begun);
                        done[own]++;
                    }
                }));
            }
            double sum = 0;
            Times times = new Times();
            for (int n = 0; n < count; n++) {
                threads.get(n).join();
                sum += done[n];
                times.merge(took[n]);
            }
            say(sum / ((now() - start) / 1e9) + " " + (cpu() - before) / sum + " " + times);
        }
    }

    // For each line take COUNT takes locks until there are so many, and for cpu tells its processor
    // time; in the end tells how many are still held.
    private static void held(Locks locks) throws Exception {
        List<Lock> all = new ArrayList<>();
        say("ready");
        for (String[] words; !(words = input.readLine().split(" "))[0].equals("end"); ) {
            if (words[0].equals("cpu")) {
                say(cpu());
                continue;
            }
            while (all.size() < Integer.parseInt(words[1])) {
                Lock lock = locks.on("stock/" + all.size());
                lock.acquire();
                all.add(lock);
            }
            say("taken");
        }
        int still = 0;
        for (Lock lock : all) {
            still += lock.held() ? 1 : 0;
        }
        say(still);
    }
}
