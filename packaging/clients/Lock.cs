// Holds a lock of `latchwork serve` while standard input is open, and prints held, lost or released.
//
//   dotnet run Lock.cs http://localhost:7117 nightly
//   mcs -r:System.Net.Http -r:System.Runtime.Serialization Lock.cs && mono Lock.exe http://localhost:7117 nightly
//
// Exit code 73: the lock was lost, and the work may have overlapped with that of another holder. The tests of this
// repository run it with Mono.
using System;
using System.Diagnostics;
using System.Net.Http;
using System.Runtime.Serialization;
using System.Runtime.Serialization.Json;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

[DataContract]
class Answer
{
    [DataMember] public string hold = "";
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

    static int Lost() { Console.WriteLine("lost"); return 73; }

    static async Task<int> Run(string root, string name)
    {
        long ttl = long.Parse(Environment.GetEnvironmentVariable("TTL_MS") ?? "15000");
        // The same key is the same claim: a retry after a lost answer gets the same hold.
        string key = Guid.NewGuid().ToString();
        string wish = "{\"ttl_ms\": " + ttl + ", \"wait_ms\": " + ttl * 10 + "}";
        Answer held = null;
        for (int tries = 0; held == null; tries++)
        {
            try { held = await Ask(HttpMethod.Post, root + "/v1/locks/" + Uri.EscapeDataString(name), wish, key, TimeSpan.FromMilliseconds(ttl * 12)); }
            catch (Exception error) { if (!IsGone(error) || tries == 3) throw; }
        }
        if (held.Status != 200) { Console.Error.WriteLine("not acquired: " + held.error); return 75; }
        string mine = root + "/v1/holds/" + held.hold;
        Console.WriteLine("held " + held.token); // give the token to the resource

        var done = Task.Run(() => Console.In.ReadToEnd()); // the work: here, until standard input ends
        var renewIn = TimeSpan.FromMilliseconds(held.renew_in_ms);
        while (true)
        {
            var pause = renewIn < held.Left ? renewIn : held.Left;
            if (pause > TimeSpan.Zero && await Task.WhenAny(done, Task.Delay(pause)) == done) break;
            if (held.Left <= TimeSpan.Zero) return Lost();
            renewIn = TimeSpan.FromMilliseconds(100); // again, while it is valid
            try
            {
                var next = await Ask(HttpMethod.Post, mine + "/renew", null, null, held.Left);
                if (next.Status == 404 || next.Status == 410) return Lost();
                if (next.Status == 200) { held = next; renewIn = TimeSpan.FromMilliseconds(next.renew_in_ms); }
            }
            catch (Exception error) { if (!IsGone(error)) throw; }
        }
        var released = await Ask(HttpMethod.Delete, mine, null, null, TimeSpan.FromSeconds(10));
        if (released.Status != 200) return Lost();
        Console.WriteLine("released");
        return 0;
    }

    static int Main(string[] args) { return Run(args[0], args[1]).GetAwaiter().GetResult(); }
}
