// What a process of a measurement does, for locks in Go. It speaks the words of the Rust child.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is a lock on one key, for one task.
type Lock struct {
	acquire func()
	release func()
	held    func() bool
}

var input = bufio.NewScanner(os.Stdin)

func line() (string, bool) {
	ok := input.Scan()
	return input.Text(), ok
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return value
}

// Nanoseconds on a clock that all processes of this machine share.
func now() int64 {
	var t unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	return t.Nano()
}

// Processor time of this process in microseconds.
func cpu() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	micros := func(t syscall.Timeval) float64 { return float64(t.Sec)*1e6 + float64(t.Usec) }
	return micros(usage.Utime) + micros(usage.Stime)
}

// Plays a role with the locks of open; a ttl of 0 is the package's own.
func run(role string, rest []string, open func(ttl time.Duration) func(key string) Lock) {
	var usual func(key string) Lock
	if role != "held" {
		usual = open(0)
		warm := usual(fmt.Sprintf("warm/%d", os.Getpid()))
		warm.acquire()
		warm.release()
	}
	switch role {
	case "contend":
		contend(usual, rest[0], int(number(rest[1])), number(rest[2]))
	case "handoff":
		handoff(usual("bench"))
	case "free":
		free(usual)
	case "held":
		held(open(time.Duration(number(rest[0])) * time.Millisecond))
	default:
		check(fmt.Errorf("no role %q", role))
	}
}

// Counts in the buckets of the Rust child's times.rs.
type times [640]int64

func (t *times) record(nanos int64) {
	bucket := int(math.Log2(float64(max(nanos, 1))) * 16)
	t[min(bucket, len(t)-1)]++
}

func (t *times) merge(other *times) {
	for bucket, count := range other {
		t[bucket] += count
	}
}

func (t *times) String() string {
	var text strings.Builder
	text.WriteString("times")
	for bucket, count := range t {
		if count > 0 {
			fmt.Fprintf(&text, " %d:%d", bucket, count)
		}
	}
	return text.String()
}

type task struct {
	scene                      *os.File
	name                       [8]byte
	pairs, handovers, overlaps int64
	waited                     times
}

func (t *task) seen() [8]byte {
	var seen [8]byte
	_, err := t.scene.ReadAt(seen[:], 0)
	check(err)
	return seen
}

func (t *task) work() {
	last := t.seen()
	_, err := t.scene.WriteAt(t.name[:], 0)
	check(err)
	t.pairs++
	if last != t.name {
		t.handovers++
	}
	if t.seen() != t.name {
		t.overlaps++
	}
}

func contend(open func(key string) Lock, scene string, count int, process int64) {
	file, err := os.OpenFile(scene, os.O_RDWR, 0)
	check(err)
	var tasks []*task
	var locks []Lock
	for n := 0; n < count; n++ {
		t := &task{scene: file}
		binary.LittleEndian.PutUint64(t.name[:], 1<<63|uint64(process)<<32|uint64(n))
		tasks, locks = append(tasks, t), append(locks, open("bench"))
	}
	fmt.Println("ready")
	text, _ := line()
	until, before := number(text), cpu()
	var all sync.WaitGroup
	for n, t := range tasks {
		all.Add(1)
		go func() {
			defer all.Done()
			for start := now(); start < until; start = now() {
				locks[n].acquire()
				end := now()
				t.waited.record(end - start)
				// What comes too late is no turn: then everybody gives up the contest.
				if end < until {
					t.work()
				}
				locks[n].release()
			}
		}()
	}
	all.Wait()
	took := cpu() - before
	var handovers, overlaps int64
	var pairs []string
	var waited times
	for _, t := range tasks {
		waited.merge(&t.waited)
		handovers, overlaps = handovers+t.handovers, overlaps+t.overlaps
		pairs = append(pairs, fmt.Sprint(t.pairs))
	}
	fmt.Println(handovers, overlaps, took, strings.Join(pairs, " "), &waited)
}

func handoff(lock Lock) {
	fmt.Println("ready")
	for text, ok := line(); ok; text, ok = line() {
		lock.acquire()
		fmt.Println("acquired", now())
		time.Sleep(time.Duration(number(text)) * time.Millisecond)
		released := now()
		lock.release()
		fmt.Println("released", released)
	}
}

// For each line `TASKS MILLISECONDS` says how many cycles a second, the processor time of one, and
// how long they took.
func free(open func(key string) Lock) {
	var locks []Lock
	fmt.Println("ready")
	for text, ok := line(); ok; text, ok = line() {
		count, length, _ := strings.Cut(text, " ")
		tasks := int(number(count))
		for n := len(locks); n < tasks; n++ {
			locks = append(locks, open(fmt.Sprintf("free/%d", n)))
		}
		before, start := cpu(), now()
		until := start + number(length)*1_000_000
		done, took := make([]int64, tasks), make([]times, tasks)
		var running sync.WaitGroup
		for n := range done {
			running.Add(1)
			go func() {
				defer running.Done()
				for begun := now(); begun < until; begun = now() {
					locks[n].acquire()
					locks[n].release()
					took[n].record(now() - begun)
					done[n]++
				}
			}()
		}
		running.Wait()
		var sum float64
		var all times
		for n, count := range done {
			sum += float64(count)
			all.merge(&took[n])
		}
		fmt.Println(sum/(float64(now()-start)/1e9), (cpu()-before)/sum, &all)
	}
}

// For each line `take COUNT` takes locks until there are so many, and for `cpu` tells its processor
// time; in the end tells how many are still held.
func held(open func(key string) Lock) {
	var locks []Lock
	fmt.Println("ready")
	for {
		text, _ := line()
		word, count, _ := strings.Cut(text, " ")
		if word == "take" {
			for n := len(locks); n < int(number(count)); n++ {
				lock := open(fmt.Sprintf("stock/%d", n))
				lock.acquire()
				locks = append(locks, lock)
			}
			fmt.Println("taken")
		} else if word == "cpu" {
			fmt.Println(cpu())
		} else {
			break
		}
	}
	still := 0
	for _, lock := range locks {
		if lock.held() {
			still++
		}
	}
	fmt.Println(still)
}
