// A worker that locks with another client than Latchwork and writes the history of docs/history.md. It takes the name of the
// client, a number of tasks, and the orders of Latchwork's own workers as flags.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Locks is what a task locks with.
type Locks interface {
	// Acquire returns no hold if the patience is over.
	Acquire(name string, patience time.Duration, luck *rand.Rand) (Hold, error)
	Close()
}

// Hold is what a task holds.
type Hold interface {
	// Token is the number that the store gave it, or 0 if it gives none.
	Token() int64
	// Seen is when the holder asked the store for what it has, or before.
	Seen() int64
	// Longest is how long a long hold may be, in ttls.
	Longest() float64
	// Check returns until when the holder relies on it if it asks at this time, or that it is lost.
	Check(at int64) (int64, *Lost)
	// Extend makes it last longer, if it is time for that, or returns that it is lost.
	Extend(at int64) *Lost
	// Release returns the answer in the history.
	Release() string
	// GiveUp deletes at the store what may be left after a loss.
	GiveUp()
}

// Lost is since when a hold is lost, and why.
type Lost struct {
	since  int64
	reason string
}

const ms = int64(time.Millisecond)

// How long the holds of each kind of key are at most, in ttls; the client decides about the long ones.
var kinds = []struct {
	name    string
	longest float64
}{{"hot", 0.003}, {"fair", 0.05}, {"long", 0}}

// Worker is this process.
type Worker struct {
	orders   map[string]string
	ttl      int64
	log      *os.File
	attempts atomic.Int64
	closing  atomic.Bool
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Nanoseconds on the clock that all processes share.
func bootTime() int64 {
	var t unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_BOOTTIME, &t))
	return t.Nano()
}

// One line for an event, and one write for a line.
func (w *Worker) note(task int, at int64, event string, values ...any) {
	who := "-"
	if task >= 0 {
		who = strconv.Itoa(task)
	}
	_, err := w.log.WriteString(fmt.Sprintf("%d %s %s ", at, w.orders["name"], who) + fmt.Sprintf(event, values...) + "\n")
	check(err)
}

// What clocks may differ within a ttl.
func (w *Worker) drift() int64 { return w.ttl/100 + 2*ms }

func (w *Worker) name(key string) string { return w.orders["namespace"] + ":" + key }

func (w *Worker) watchStalls() {
	const nap = 20 * ms
	for !w.closing.Load() {
		before := bootTime()
		time.Sleep(time.Duration(nap))
		now := bootTime()
		if length := now - before - nap; length >= 4*ms {
			w.note(-1, now, "stalled length=%d", length)
		}
	}
}

type task struct {
	*Worker
	task  int
	locks Locks
	luck  *rand.Rand
	desk  net.Conn
	lines *bufio.Reader
}

func (t *task) say(event string, values ...any) { t.note(t.task, bootTime(), event, values...) }

func (t *task) life() {
	for !t.closing.Load() {
		time.Sleep(time.Duration(t.luck.Int63n(30 * ms)))
		t.turn()
	}
	t.locks.Close()
}

func (t *task) turn() {
	attempt, kind := t.attempts.Add(1), kinds[t.luck.Intn(len(kinds))]
	keys, err := strconv.Atoi(t.orders["keys"])
	check(err)
	key := fmt.Sprintf("%s%d", kind.name, t.luck.Intn(keys))
	t.say("try attempt=%d key=%s mode=exclusive fair=false waits=true several=false", attempt, key)
	patience := time.Duration((0.5 + 1.5*t.luck.Float64()) * float64(t.ttl))
	hold, err := t.locks.Acquire(t.name(key), patience, t.luck)
	if err != nil {
		fmt.Fprintf(os.Stderr, "attempt %d on %s: %v\n", attempt, key, err)
		t.say("gave_up attempt=%d why=failed", attempt)
		return
	}
	if hold == nil {
		t.say("gave_up attempt=%d why=timed_out", attempt)
		return
	}
	told := bootTime()
	validUntil, lost := hold.Check(hold.Seen())
	if lost != nil {
		hold.GiveUp()
		t.say("gave_up attempt=%d why=failed", attempt)
		return
	}
	t.say("granted attempt=%d token=%d ttl=%d valid_until=%d", attempt, hold.Token(), t.ttl, validUntil)
	longest := kind.longest
	if longest == 0 {
		longest = hold.Longest()
	}
	if lost := t.work(attempt, key, hold, told+int64(t.luck.Float64()*longest*float64(t.ttl))); lost != nil {
		t.say("lost attempt=%d since=%d reason=%s", attempt, max(lost.since, told), lost.reason)
		t.write(attempt, key, hold)
		hold.GiveUp()
		return
	}
	t.say("released attempt=%d answer=%s", attempt, hold.Release())
}

// Checks and writes in steps until the time is over.
func (t *task) work(attempt int64, key string, hold Hold, until int64) *Lost {
	for {
		asked := bootTime()
		validUntil, lost := hold.Check(asked)
		if lost != nil {
			return lost
		}
		t.note(t.task, asked, "held attempt=%d valid_until=%d", attempt, validUntil)
		if asked >= until {
			// It relied on it until the last time that it asked.
			t.note(t.task, asked, "releasing attempt=%d how=release", attempt)
			return nil
		}
		if lost := hold.Extend(asked); lost != nil {
			return lost
		}
		t.write(attempt, key, hold)
		time.Sleep(time.Duration(min(t.ttl/20, min(until, validUntil+ms)-asked)))
	}
}

// A holder without a number writes nothing: it only says that it holds.
func (t *task) write(attempt int64, key string, hold Hold) {
	token := "-"
	if hold.Token() != 0 {
		token = strconv.FormatInt(hold.Token(), 10)
	}
	_, err := fmt.Fprintf(t.desk, "%s %s %d %s\n", key, t.orders["name"], attempt, token)
	check(err)
	answer, err := t.lines.ReadString('\n')
	check(err)
	if hold.Token() != 0 {
		t.say("wrote attempt=%d token=%s accepted=%t", attempt, token, answer == "1\n")
	}
}

var clients = map[string]func(w *Worker) (func() Locks, error){
	"redsync":        redsyncLocks,
	"go-concurrency": sessions,
}

func main() {
	if len(os.Args) < 3 {
		check(errors.New("CLIENT TASKS --name value ..."))
	}
	tasks, err := strconv.Atoi(os.Args[2])
	check(err)
	w := &Worker{orders: map[string]string{}}
	words := os.Args[3:]
	for n := 0; n+1 < len(words); n += 2 {
		w.orders[strings.TrimPrefix(words[n], "--")] = words[n+1]
	}
	millis, err := strconv.ParseFloat(strings.TrimSuffix(w.orders["ttl"], "ms"), 64)
	check(err)
	w.ttl = int64(millis * float64(ms))
	w.log, err = os.OpenFile(w.orders["log"], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(err)
	w.note(-1, bootTime(), "started pid=%d seed=%s", os.Getpid(), w.orders["seed"])
	open, known := clients[os.Args[1]]
	if !known {
		check(fmt.Errorf("no client %q", os.Args[1]))
	}
	locks, err := open(w)
	check(err)
	go w.watchStalls()
	seed, err := strconv.ParseUint(w.orders["seed"], 10, 64)
	check(err)
	var all sync.WaitGroup
	for n := 0; n < tasks; n++ {
		desk, err := net.Dial("unix", w.orders["resource"])
		check(err)
		luck := rand.New(rand.NewSource(int64(seed) + int64(n)<<32))
		t := &task{Worker: w, task: n, locks: locks(), luck: luck, desk: desk, lines: bufio.NewReader(desk)}
		all.Add(1)
		go func() {
			defer all.Done()
			t.life()
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	w.closing.Store(true)
	all.Wait()
	w.note(-1, bootTime(), "ended")
}
