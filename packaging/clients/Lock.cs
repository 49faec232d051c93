// Holds a lock of `latchwork serve` while standard input is open, and prints held, lost or released. Several locks belong
// to a session, which one request renews.
//
//   dotnet run Lock.cs http://localhost:7117 nightly
//   mcs -r:System.Net.Http -r:System.Runtime.Serialization Lock.cs && mono Lock.exe http://localhost:7117 stock/1 stock/2
//
// Exit code 73: the lock was lost, or nobody answered to its release: the work may have overlapped with that of another
// holder. The tests of this repository run it with Mono.
using System;
using System.Diagnostics;
using System.Linq;
using System.Net.Http;
using System.Runtime.Serialization;
using System.Runtime.Serialization.Json;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

[DataContract]
class Held { }

[DataContract]
class Answer
{
    [DataMember] public string hold = "";
    [DataMember] public string session = "";
    [DataMember] public Held[] held = { }; // the locks of a session
    [DataMember] public string token = "";
    [DataMember] public string error = "";
    [DataMember] public long valid_for_ms;
    [DataMember] public long renew_in_ms;
    public int Status;
    public Stopwatch Since = new Stopwatch(); // runs from before the request: valid_for_ms counts from there
    public TimeSpan Left { get { return TimeSpan.FromMilliseconds(valid_for_ms) - Since.Elapsed; } }
}

static class Lock
{
    static readonly HttpClient Client = new HttpClient { Timeout = Timeout.InfiniteTimeSpan };

    static async Task<Answer> Ask(HttpMethod method, string url, string body, string key, TimeSpan limit)
    {
        using (var cut = new CancellationTokenSource(limit > TimeSpan.Zero ? limit : TimeSpan.FromMilliseconds(1)))
        using (var request = new HttpRequestMessage(method, url))
        {
            if (body != null) request.Content = new StringContent(body, Encoding.UTF8, "application/json");
            if (key != null) request.Headers.Add("Idempotency-Key", key);
            var since = Stopwatch.StartNew();
            using (var response = await Client.SendAsync(request, HttpCompletionOption.ResponseContentRead, cut.Token))
            {
                var text = await response.Content.ReadAsStreamAsync();
                var answer = (Answer)new DataContractJsonSerializer(typeof(Answer)).ReadObject(text);
                answer.Status = (int)response.StatusCode;
                answer.Since = since;
                return answer;
            }
        }
    }

    static bool IsGone(Exception error) { return error is HttpRequestException || error is OperationCanceledException; }

    // Repeats a request whose answer is lost, with the same key: it is the same claim, and gets the same hold.
    static async Task<Answer> Acquire(string url, string wish, long limit)
    {
        string key = Guid.NewGuid().ToString();
        for (int tries = 0; ; tries++)
        {
            try { return await Ask(HttpMethod.Post, url, wish, key, TimeSpan.FromMilliseconds(limit)); }
            catch (Exception error) { if (!IsGone(error) || tries == 3) throw; }
        }
    }

    static int NotAcquired(Answer answer) { Console.Error.WriteLine("not acquired: " + answer.error); return 75; }

    static async Task<int> Lost(string mine)
    {
        Console.WriteLine("lost"); // the work must have ended here: this releases what is left
        try { await Ask(HttpMethod.Delete, mine, null, null, TimeSpan.FromSeconds(1)); }
        catch (Exception) { } // it ends by its ttl
        return 73;
    }

    static async Task<int> Run(string root, string[] names)
    {
        long ttl = long.Parse(Environment.GetEnvironmentVariable("TTL_MS") ?? "15000");
        string wish = "{\"ttl_ms\": " + ttl + ", \"wait_ms\": " + ttl * 10 + "}";
        bool isSession = names.Length > 1;
        Answer kept = null; // what is renewed
        if (isSession)
        {
            kept = await Acquire(root + "/v1/sessions", "{\"ttl_ms\": " + ttl + "}", ttl);
            if (kept.Status != 200) return NotAcquired(kept);
            wish = "{\"session\": \"" + kept.session + "\"}"; // without a wait: nobody renews the session meanwhile
        }
        foreach (string name in names)
        {
            var held = await Acquire(root + "/v1/lock?name=" + Uri.EscapeDataString(name), wish, ttl * 12);
            if (held.Status != 200) return NotAcquired(held);
            Console.WriteLine("held " + held.token); // give the token to the resource
            kept = kept ?? held;
        }
        string mine = root + (isSession ? "/v1/sessions/" + kept.session : "/v1/holds/" + kept.hold);

        var done = Task.Run(() => Console.In.ReadToEnd()); // the work: here, until standard input ends
        var renewIn = TimeSpan.FromMilliseconds(kept.renew_in_ms);
        while (true)
        {
            var pause = renewIn < kept.Left ? renewIn : kept.Left;
            if (pause > TimeSpan.Zero && await Task.WhenAny(done, Task.Delay(pause)) == done) break;
            if (kept.Left <= TimeSpan.Zero) return await Lost(mine);
            renewIn = TimeSpan.FromMilliseconds(100); // again, while it is valid
            try
            {
                var next = await Ask(HttpMethod.Post, mine + "/renew", null, null, kept.Left);
                if (next.Status == 404 || next.Status == 410) return await Lost(mine);
                if (next.Status != 200) continue;
                if (isSession && next.held.Length < names.Length) return await Lost(mine); // one of them
                kept = next;
                renewIn = TimeSpan.FromMilliseconds(next.renew_in_ms);
            }
            catch (Exception error) { if (!IsGone(error)) throw; }
        }
        bool isReleased = false;
        try { isReleased = (await Ask(HttpMethod.Delete, mine, null, null, TimeSpan.FromSeconds(10))).Status == 200; }
        catch (Exception error) { if (!IsGone(error)) throw; }
        if (!isReleased) return await Lost(mine); // also without an answer: nobody knows whether it was held until now
        Console.WriteLine("released");
        return 0;
    }

    static int Main(string[] args) { return Run(args[0], args.Skip(1).ToArray()).GetAwaiter().GetResult(); }
}
