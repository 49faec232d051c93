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
    // The machine compiles what runs often.
    private static final int WARM = 500;

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
        return args[0].equals("held") ? Long.parseLong(args[3]) : 0;
    }

    // ROLE URL ...
    static void run(String[] args, Locks locks) throws Exception {
        Lock warm = locks.on("warm/" + ProcessHandle.current().pid());
        for (int i = 0; i < WARM; i++) {
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
                held(locks, Integer.parseInt(args[2]));
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

    // Who owns the key, and what it sees while it does.
    private static class Task {
        final FileChannel scene;
        final long name;
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
                while (now() < until) {
                    lock.acquire();
                    // What comes too late is not counted: then everybody gives up the contest.
                    if (now() < until) {
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
        for (Task task : tasks) {
            handovers += task.handovers;
            overlaps += task.overlaps;
            pairs.append(' ').append(task.pairs);
        }
        say(handovers + " " + overlaps + " " + took + pairs);
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

    // For each line TASKS MILLISECONDS says how many cycles a second, and the processor time of one.
    private static void free(Locks locks) throws Exception {
        say("ready");
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            int count = Integer.parseInt(words[0]);
            double before = cpu();
            long start = now();
            long until = start + Long.parseLong(words[1]) * 1_000_000;
            long[] done = new long[count];
            List<Thread> threads = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                int own = n;
                Lock lock = locks.on("bench/" + n);
                threads.add(started(() -> {
                    while (now() < until) {
                        lock.acquire();
                        lock.release();
                        done[own]++;
                    }
                }));
            }
            double sum = 0;
            for (int n = 0; n < count; n++) {
                threads.get(n).join();
                sum += done[n];
            }
            say(sum / ((now() - start) / 1e9) + " " + (cpu() - before) / sum);
        }
    }

    // Takes many; tells its processor time when asked, and in the end how many are still held.
    private static void held(Locks locks, int count) throws Exception {
        List<Lock> all = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            Lock lock = locks.on("stock/" + n);
            lock.acquire();
            all.add(lock);
        }
        say("ready");
        for (String line; (line = input.readLine()) != null && line.equals("cpu"); ) {
            say(cpu());
        }
        int still = 0;
        for (Lock lock : all) {
            still += lock.held() ? 1 : 0;
        }
        say(still);
    }
}
