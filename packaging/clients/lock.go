// Holds a lock of `latchwork serve` while standard input is open, and prints held, lost or released. Several locks belong
// to a session, which one request renews.
//
//	go run lock.go http://localhost:7117 nightly
//	go run lock.go http://localhost:7117 stock/1 stock/2
//
// Exit code 73: the lock was lost, or nobody answered to its release: the work may have overlapped with that of another
// holder.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

type hold struct {
	Hold       string `json:"hold"`
	Session    string `json:"session"`
	Held       []any  `json:"held"`  // the locks of a session
	Token      string `json:"token"` // text: it exceeds 2^53
	ValidForMs int64  `json:"valid_for_ms"`
	RenewInMs  int64  `json:"renew_in_ms"`
	Kind       string `json:"kind"`
	Error      string `json:"error"`
}

// ask sends a request. The time that it returns is from before it was sent: valid_for_ms counts from there.
//
// Go's clock stands still while the machine sleeps. Use CLOCK_BOOTTIME (golang.org/x/sys/unix) on a machine that does.
func ask(limit time.Duration, method, address, key string, body any) (int, hold, time.Time, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var answer hold
	sent := time.Now()
	text, _ := json.Marshal(body)
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(text))
	if err != nil {
		return 0, answer, sent, err
	}
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, answer, sent, err
	}
	defer response.Body.Close()
	return response.StatusCode, answer, sent, json.NewDecoder(response.Body).Decode(&answer)
}

// acquire repeats a request whose answer is lost, with the same key: it is the same claim, and gets the same hold.
func acquire(limit time.Duration, address string, wish map[string]any) (hold, time.Time) {
	key := rand.Text()
	status, held, sent, err := ask(limit, "POST", address, key, wish)
	for try := 0; err != nil && try < 3; try++ {
		status, held, sent, err = ask(limit, "POST", address, key, wish)
	}
	if err != nil || status != 200 {
		fmt.Fprintln(os.Stderr, "not acquired:", held.Error, err)
		os.Exit(75)
	}
	return held, sent.Add(time.Duration(held.ValidForMs) * time.Millisecond)
}

func main() {
	base, names := os.Args[1], os.Args[2:]
	ttl, _ := strconv.ParseInt(os.Getenv("TTL_MS"), 10, 64)
	if ttl == 0 {
		ttl = 15000
	}
	limit := time.Duration(ttl) * 12 * time.Millisecond // longer than the wait
	wish := map[string]any{"ttl_ms": ttl, "wait_ms": ttl * 10}
	var kept hold // what is renewed
	var until time.Time
	if len(names) > 1 {
		kept, until = acquire(limit, base+"/v1/sessions", map[string]any{"ttl_ms": ttl})
		wish = map[string]any{"session": kept.Session} // without a wait: nobody renews the session meanwhile
	}
	for _, name := range names {
		held, valid := acquire(limit, base+"/v1/lock?name="+url.QueryEscape(name), wish)
		fmt.Println("held", held.Token) // give the token to the resource
		if kept.Session == "" {
			kept, until = held, valid
		}
	}
	renew := time.After(time.Duration(kept.RenewInMs) * time.Millisecond)
	mine := base + "/v1/holds/" + kept.Hold
	if kept.Session != "" {
		mine = base + "/v1/sessions/" + kept.Session
	}
	lost := func() {
		fmt.Println("lost")
		ask(time.Second, "DELETE", mine, "", nil) // the work must have ended here: this releases what is left
		os.Exit(73)
	}

	done := make(chan struct{}) // the work: here, until standard input ends
	go func() { io.Copy(io.Discard, os.Stdin); close(done) }()
	for working := true; working; {
		select {
		case <-done:
			working = false
		case <-time.After(time.Until(until)):
			lost()
		case <-renew:
			status, next, sent, err := ask(time.Until(until), "POST", mine+"/renew", "", nil)
			switch {
			case err == nil && status == 200:
				until = sent.Add(time.Duration(next.ValidForMs) * time.Millisecond)
				renew = time.After(time.Duration(next.RenewInMs) * time.Millisecond)
				if kept.Session != "" && len(next.Held) < len(names) {
					lost() // one of them
				}
			case err == nil && (status == 404 || status == 410):
				lost()
			default: // try again, for as long as it is valid
				renew = time.After(100 * time.Millisecond)
			}
		}
	}
	if status, _, _, err := ask(10*time.Second, "DELETE", mine, "", nil); err != nil || status != 200 {
		lost() // also without an answer: nobody knows whether it was held until now
	}
	fmt.Println("released")
}
