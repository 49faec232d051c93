// Curator's InterProcessMutex in the roles of the measurements: ROLE URL ...
// It speaks the words of the Rust child.

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
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

public class Curator {
    // The machine compiles what runs often.
    private static final int WARM = 500;

    private static final BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in));
    private static CuratorFramework client;
    private static String folder;

    public static void main(String[] args) throws Exception {
        String[] parts = args[1].substring("zk://".length()).split("/", 2);
        client = CuratorFrameworkFactory.newClient(parts[0], 30_000, 5_000, new RetryOneTime(100));
        folder = "/" + (parts.length > 1 ? parts[1] + "/" : "");
        client.start();
        client.blockUntilConnected();
        InterProcessMutex warm = mutex("warm/" + ProcessHandle.current().pid());
        for (int i = 0; i < WARM; i++) {
            warm.acquire();
            warm.release();
        }
        switch (args[0]) {
            case "contend":
                contend(Path.of(args[2]), Integer.parseInt(args[3]), Long.parseLong(args[4]));
                break;
            case "handoff":
                handoff();
                break;
            case "free":
                free();
                break;
            case "held":
                held(Integer.parseInt(args[2]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.exit(0);
    }

    private static InterProcessMutex mutex(String key) {
        return new InterProcessMutex(client, folder + key);
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

    private static void contend(Path file, int count, long process) throws Exception {
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
            InterProcessMutex mutex = mutex("bench");
            threads.add(started(() -> {
                while (now() < until) {
                    mutex.acquire();
                    // What comes too late is not counted: then everybody gives up the contest.
                    if (now() < until) {
                        task.work();
                    }
                    mutex.release();
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

    private static void handoff() throws Exception {
        InterProcessMutex mutex = mutex("bench");
        say("ready");
        for (String line; (line = input.readLine()) != null; ) {
            mutex.acquire();
            say("acquired " + now());
            Thread.sleep(Long.parseLong(line));
            long released = now();
            mutex.release();
            say("released " + released);
        }
    }

    // For each line TASKS MILLISECONDS says how many cycles a second, and the processor time of one.
    private static void free() throws Exception {
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
                InterProcessMutex mutex = mutex("bench/" + n);
                threads.add(started(() -> {
                    while (now() < until) {
                        mutex.acquire();
                        mutex.release();
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
    private static void held(int count) throws Exception {
        List<InterProcessMutex> mutexes = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            InterProcessMutex mutex = mutex("stock/" + n);
            mutex.acquire();
            mutexes.add(mutex);
        }
        say("ready");
        for (String line; (line = input.readLine()) != null && line.equals("cpu"); ) {
            say(cpu());
        }
        say(mutexes.stream().filter(InterProcessMutex::isAcquiredInThisProcess).count());
    }
}
