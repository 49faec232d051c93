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
 * Holds a lock of {@code latchwork serve} while standard input is open, and prints held, lost or released. Several locks
 * belong to a session, which one request renews.
 *
 * <pre>java Lock.java http://localhost:7117 nightly
 *java Lock.java http://localhost:7117 stock/1 stock/2</pre>
 *
 * Exit code 73: the lock was lost, or nobody answered to its release: the work may have overlapped with that of another
 * holder.
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

        /** How many locks a session holds. */
        int held() {
            return body.split("\"lost\":")[0].split("\"token\":").length - 1;
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

    /** Repeats a request whose answer is lost, with the same key: it is the same claim, and gets the same hold. */
    private static Answer acquire(String address, String wish, long limit) throws Exception {
        String key = UUID.randomUUID().toString();
        for (int tries = 0; ; tries++) {
            try {
                Answer held = ask("POST", address, key, wish, Duration.ofMillis(limit));
                if (held.status() != 200) {
                    System.err.println("not acquired: " + held.body());
                    System.exit(75);
                }
                return held;
            } catch (java.io.IOException error) {
                if (tries == 3) {
                    throw error;
                }
            }
        }
    }

    private static void lost(String mine) {
        System.out.println("lost");
        try {
            // The work must have ended here: this releases what is left.
            ask("DELETE", mine, null, "", Duration.ofSeconds(1));
        } catch (Exception error) {
            // It ends by its ttl.
        }
        System.exit(73);
    }

    public static void main(String[] args) throws Exception {
        String base = args[0];
        int names = args.length - 1;
        boolean isSession = names > 1;
        long ttl = Long.parseLong(System.getenv().getOrDefault("TTL_MS", "15000"));
        String wish = "{\"ttl_ms\": " + ttl + ", \"wait_ms\": " + ttl * 10 + "}";
        Answer kept = null; // what is renewed
        if (isSession) {
            kept = acquire(base + "/v1/sessions", "{\"ttl_ms\": " + ttl + "}", ttl);
            // Without a wait: nobody renews the session meanwhile.
            wish = "{\"session\": \"" + kept.text("session") + "\"}";
        }
        for (int at = 1; at <= names; at++) {
            String name = URLEncoder.encode(args[at], StandardCharsets.UTF_8);
            Answer held = acquire(base + "/v1/lock?name=" + name, wish, ttl * 12);
            System.out.println("held " + held.text("token")); // give the token to the resource
            kept = isSession ? kept : held;
        }
        long until = kept.until();
        long renewIn = kept.millis("renew_in_ms");

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
        String mine = base + (isSession ? "/v1/sessions/" + kept.text("session") : "/v1/holds/" + kept.text("hold"));
        while (!done.await(Math.min(renewIn, Math.max(0, TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime()))), TimeUnit.MILLISECONDS)) {
            long left = until - System.nanoTime();
            if (left <= 0) {
                lost(mine);
            }
            try {
                Answer next = ask("POST", mine + "/renew", null, "", Duration.ofNanos(left));
                if (next.status() == 200) {
                    until = next.until();
                    renewIn = next.millis("renew_in_ms");
                    if (isSession && next.held() < names) {
                        lost(mine); // one of them
                    }
                    continue;
                }
                if (next.status() == 404 || next.status() == 410) {
                    lost(mine);
                }
            } catch (java.io.IOException error) {
                // Try again, for as long as it is valid.
            }
            renewIn = 100;
        }
        try {
            if (ask("DELETE", mine, null, "", Duration.ofSeconds(10)).status() != 200) {
                lost(mine);
            }
        } catch (java.io.IOException error) {
            lost(mine); // nobody knows whether it was held until now
        }
        System.out.println("released");
        System.exit(0);
    }
}
