// A worker that locks with another client than Latchwork and writes the history of docs/history.md. It takes a number of
// tasks, how far the boot clock is ahead of the one that Java reads, and the orders of Latchwork's own workers as flags.

import java.io.FileOutputStream;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;

class Worker {
    static final long MS = 1_000_000;
    private static final long NAP = 20 * MS;
    private static final String[] KINDS = {"hot", "fair", "long"};
    // How long the holds of each kind of key are at most, in ttls.
    private static final double[] LENGTHS = {0.003, 0.05, 0.8};

    // What the client locks with, for all tasks.
    interface Locks {
        // Null if the patience is over.
        Hold acquire(String name, long patience) throws Exception;

        void close() throws Exception;
    }

    interface Hold {
        // The number that the store gave it.
        long token();

        // When the holder asked the store for what it has, or before.
        long seen();

        // Until when the holder relies on it if it asks at this time.
        long check(long at) throws Lost;

        // The answer in the history.
        String release();

        // After a loss: deletes at the store what may be left of it.
        void giveUp();
    }

    static class Lost extends Exception {
        final long since;

        Lost(long since) {
            super("session_ended", null, false, false);
            this.since = since;
        }
    }

    final Map<String, String> orders = new HashMap<>();
    final long ttl;
    private final int tasks;
    private final long ahead;
    private final FileOutputStream log;
    private final AtomicLong attempts = new AtomicLong();
    private volatile boolean closing;

    Worker(String[] args) throws IOException {
        tasks = Integer.parseInt(args[0]);
        ahead = Long.parseLong(args[1]);
        for (int n = 2; n < args.length; n += 2) {
            orders.put(args[n].substring("--".length()), args[n + 1]);
        }
        ttl = (long) (Double.parseDouble(orders.get("ttl").replace("ms", "")) * MS);
        log = new FileOutputStream(orders.get("log"), true);
        note("-", bootTime(), "started pid=" + ProcessHandle.current().pid() + " seed=" + orders.get("seed"));
    }

    // The clock that all processes share.
    long bootTime() {
        return System.nanoTime() + ahead;
    }

    // The end of a ttl that began then, less what clocks may differ.
    long validFrom(long since) {
        return since + ttl - ttl / 100 - 2 * MS;
    }

    // One line for an event, and one write for a line.
    private void note(Object task, long at, String event) throws IOException {
        String line = at + " " + orders.get("name") + " " + task + " " + event + "\n";
        log.write(line.getBytes(StandardCharsets.UTF_8));
    }

    void run(Locks locks) throws Exception {
        Thread witness = new Thread(this::watchStalls);
        witness.setDaemon(true);
        witness.start();
        List<Thread> all = new ArrayList<>();
        for (int n = 0; n < tasks; n++) {
            int task = n;
            Thread thread = new Thread(() -> {
                try {
                    new Task(task, locks).life();
                } catch (Exception e) {
                    e.printStackTrace();
                    System.exit(1);
                }
            });
            thread.start();
            all.add(thread);
        }
        while (System.in.read() >= 0) {}
        closing = true;
        for (Thread thread : all) {
            thread.join();
        }
        locks.close();
        note("-", bootTime(), "ended");
        System.exit(0);
    }

    private void watchStalls() {
        try {
            while (!closing) {
                long before = bootTime();
                Thread.sleep(NAP / MS);
                long now = bootTime();
                if (now - before - NAP >= 4 * MS) {
                    note("-", now, "stalled length=" + (now - before - NAP));
                }
            }
        } catch (IOException | InterruptedException e) {
            e.printStackTrace();
        }
    }

    private class Task {
        private final int task;
        private final Locks locks;
        private final Random luck;
        private final SocketChannel desk;

        Task(int task, Locks locks) throws IOException {
            this.task = task;
            this.locks = locks;
            luck = new Random(Long.parseUnsignedLong(orders.get("seed")) * 31 + task);
            desk = SocketChannel.open(StandardProtocolFamily.UNIX);
            desk.connect(UnixDomainSocketAddress.of(orders.get("resource")));
        }

        private void say(String event) throws IOException {
            note(task, bootTime(), event);
        }

        void life() throws Exception {
            while (!closing) {
                Thread.sleep(luck.nextInt(30));
                turn();
            }
        }

        private void turn() throws Exception {
            long attempt = attempts.incrementAndGet();
            int kind = luck.nextInt(KINDS.length);
            String key = KINDS[kind] + luck.nextInt(Integer.parseInt(orders.get("keys")));
            say("try attempt=" + attempt + " key=" + key + " mode=exclusive fair=false waits=true several=false");
            Hold hold;
            try {
                long patience = (long) ((0.5 + 1.5 * luck.nextDouble()) * ttl);
                hold = locks.acquire(orders.get("namespace") + ":" + key, patience);
            } catch (Exception e) {
                System.err.println("attempt " + attempt + " on " + key + ": " + e);
                say("gave_up attempt=" + attempt + " why=failed");
                return;
            }
            if (hold == null) {
                say("gave_up attempt=" + attempt + " why=timed_out");
                return;
            }
            long told = bootTime();
            try {
                long validUntil = hold.check(hold.seen());
                say("granted attempt=" + attempt + " token=" + hold.token() + " ttl=" + ttl
                        + " valid_until=" + validUntil);
            } catch (Lost lost) {
                hold.giveUp();
                say("gave_up attempt=" + attempt + " why=failed");
                return;
            }
            try {
                work(attempt, key, hold, told + (long) (luck.nextDouble() * LENGTHS[kind] * ttl));
            } catch (Lost lost) {
                say("lost attempt=" + attempt + " since=" + Math.max(lost.since, told) + " reason=session_ended");
                write(attempt, key, hold);
                hold.giveUp();
                return;
            }
            say("released attempt=" + attempt + " answer=" + hold.release());
        }

        // Checks and writes in steps until the time is over.
        private void work(long attempt, String key, Hold hold, long until) throws Exception {
            while (true) {
                long asked = bootTime();
                long validUntil = hold.check(asked);
                note(task, asked, "held attempt=" + attempt + " valid_until=" + validUntil);
                if (asked >= until) {
                    // It relied on it until the last time that it asked.
                    note(task, asked, "releasing attempt=" + attempt + " how=release");
                    return;
                }
                write(attempt, key, hold);
                Thread.sleep(Math.min(ttl / 20, Math.max(0, until - asked)) / MS);
            }
        }

        private void write(long attempt, String key, Hold hold) throws IOException {
            String line = key + " " + orders.get("name") + " " + attempt + " " + hold.token() + "\n";
            ByteBuffer out = ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8));
            while (out.hasRemaining()) {
                desk.write(out);
            }
            ByteBuffer answer = ByteBuffer.allocate(2);
            while (answer.hasRemaining()) {
                if (desk.read(answer) < 0) {
                    throw new IOException("the resource is gone");
                }
            }
            say("wrote attempt=" + attempt + " token=" + hold.token() + " accepted=" + (answer.get(0) == '1'));
        }
    }
}
