import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/**
 * Holds a lock of {@code latchwork serve} while standard input is open, and prints held, lost or released.
 *
 * <pre>java Lock.java http://localhost:7117 nightly</pre>
 *
 * Exit code 73: the lock was lost, and the work may have overlapped with that of another holder.
 */
public class Lock {
    private static final HttpClient CLIENT =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    /** An answer, and a time from before its request was sent: valid_for_ms counts from there. */
    private record Answer(int status, String body, long sent) {
        /** A field of flat JSON; use a JSON library in a real program. */
        String text(String field) {
            var found = Pattern.compile("\"" + field + "\":\"?([^\",}]*)").matcher(body);
            return found.find() ? found.group(1) : "";
        }

        long millis(String field) {
            return Long.parseLong(text(field));
        }

        /** By System.nanoTime, which stands still while the machine sleeps. */
        long until() {
            return sent + TimeUnit.MILLISECONDS.toNanos(millis("valid_for_ms"));
        }
    }

    private static Answer ask(String method, String address, String key, String body, Duration limit) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(address)).timeout(limit)
                .header("Content-Type", "application/json")
                .method(method, BodyPublishers.ofString(body));
        if (key != null) {
            request.header("Idempotency-Key", key);
        }
        long sent = System.nanoTime();
        HttpResponse<String> response = CLIENT.send(request.build(), BodyHandlers.ofString());
        return new Answer(response.statusCode(), response.body(), sent);
    }

    private static void lost() {
        System.out.println("lost");
        System.exit(73);
    }

    public static void main(String[] args) throws Exception {
        String base = args[0];
        String name = URLEncoder.encode(args[1], StandardCharsets.UTF_8).replace("+", "%20");
        long ttl = Long.parseLong(System.getenv().getOrDefault("TTL_MS", "15000"));
        String wish = "{\"ttl_ms\": " + ttl + ", \"wait_ms\": " + ttl * 10 + "}";
        // The same key is the same claim: a retry after a lost answer gets the same hold.
        String key = UUID.randomUUID().toString();
        Answer held = null;
        for (int tries = 0; held == null; tries++) {
            try {
                held = ask("POST", base + "/v1/locks/" + name, key, wish, Duration.ofMillis(ttl * 12));
            } catch (java.io.IOException error) {
                if (tries == 3) {
                    throw error;
                }
            }
        }
        if (held.status() != 200) {
            System.err.println("not acquired: " + held.body());
            System.exit(75);
        }
        long until = held.until();
        long renewIn = held.millis("renew_in_ms");
        System.out.println("held " + held.text("token")); // give the token to the resource

        var done = new CountDownLatch(1); // the work: here, until standard input ends
        var work = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException ignored) {
                // It has ended, too.
            }
            done.countDown();
        });
        work.setDaemon(true);
        work.start();
        String mine = base + "/v1/holds/" + held.text("hold");
        while (!done.await(Math.min(renewIn, Math.max(0, TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime()))), TimeUnit.MILLISECONDS)) {
            long left = until - System.nanoTime();
            if (left <= 0) {
                lost();
            }
            try {
                Answer next = ask("POST", mine + "/renew", null, "", Duration.ofNanos(left));
                if (next.status() == 200) {
                    until = next.until();
                    renewIn = next.millis("renew_in_ms");
                    continue;
                }
                if (next.status() == 404 || next.status() == 410) {
                    lost();
                }
            } catch (java.io.IOException error) {
                // Try again, for as long as it is valid.
            }
            renewIn = 100;
        }
        if (ask("DELETE", mine, null, "", Duration.ofSeconds(10)).status() != 200) {
            lost();
        }
        System.out.println("released");
        System.exit(0);
    }
}
