// Holds a lock of `latchwork serve` while standard input is open, and prints held, lost or released.
//
//   dotnet run Lock.cs http://localhost:7117 nightly
//
// Exit code 73: the lock was lost, and the work may have overlapped with that of another holder. This example is not
// run by the tests of this repository: they have no .NET.
using System.Diagnostics;
using System.Net.Http.Json;
using System.Text.Json.Nodes;

string root = args[0], name = Uri.EscapeDataString(args[1]);
long ttl = long.Parse(Environment.GetEnvironmentVariable("TTL_MS") ?? "15000");
using var client = new HttpClient { Timeout = Timeout.InfiniteTimeSpan };

// Sends a request. The time is from before that: valid_for_ms counts from there.
async Task<(int Status, JsonNode Body, long Sent)> Ask(HttpMethod method, string path, object? body, string? key, TimeSpan limit)
{
    using var cut = new CancellationTokenSource(limit);
    using var request = new HttpRequestMessage(method, root + path);
    if (body != null) request.Content = JsonContent.Create(body);
    if (key != null) request.Headers.Add("Idempotency-Key", key);
    long sent = Stopwatch.GetTimestamp();
    using var response = await client.SendAsync(request, cut.Token);
    var text = await response.Content.ReadAsStringAsync(cut.Token);
    return ((int)response.StatusCode, JsonNode.Parse(text)!, sent);
}

static int Lost() { Console.WriteLine("lost"); return 73; }

// The same key is the same claim: a retry after a lost answer gets the same hold.
string key = Guid.NewGuid().ToString();
(int Status, JsonNode Body, long Sent) held = default;
for (int tries = 0; held.Body == null; tries++)
{
    try { held = await Ask(HttpMethod.Post, $"/v1/locks/{name}", new { ttl_ms = ttl, wait_ms = ttl * 10 }, key, TimeSpan.FromMilliseconds(ttl * 12)); }
    catch (Exception error) when (error is HttpRequestException or OperationCanceledException && tries < 3) { }
}
if (held.Status != 200) { Console.Error.WriteLine($"not acquired: {held.Body["error"]}"); return 75; }
string mine = $"/v1/holds/{held.Body["hold"]}";
var valid = TimeSpan.FromMilliseconds((long)held.Body["valid_for_ms"]!);
var renewIn = TimeSpan.FromMilliseconds((long)held.Body["renew_in_ms"]!);
long since = held.Sent;
TimeSpan Left() => valid - Stopwatch.GetElapsedTime(since);
Console.WriteLine($"held {held.Body["token"]}"); // give the token to the resource

var done = Task.Run(() => Console.In.ReadToEnd()); // the work: here, until standard input ends
while (true)
{
    var pause = renewIn < Left() ? renewIn : Left();
    if (pause > TimeSpan.Zero && await Task.WhenAny(done, Task.Delay(pause)) == done) break;
    if (Left() <= TimeSpan.Zero) return Lost();
    renewIn = TimeSpan.FromMilliseconds(100);
    try
    {
        var next = await Ask(HttpMethod.Post, mine + "/renew", null, null, Left());
        if (next.Status == 200)
        {
            (since, valid) = (next.Sent, TimeSpan.FromMilliseconds((long)next.Body["valid_for_ms"]!));
            renewIn = TimeSpan.FromMilliseconds((long)next.Body["renew_in_ms"]!);
        }
        else if (next.Status is 404 or 410) return Lost();
    }
    catch (Exception error) when (error is HttpRequestException or OperationCanceledException) { } // again, while it is valid
}
var released = await Ask(HttpMethod.Delete, mine, null, null, TimeSpan.FromSeconds(10));
if (released.Status != 200) return Lost();
Console.WriteLine("released");
return 0;
