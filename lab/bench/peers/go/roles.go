// Locks of Go in the words of src/roles.rs.
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

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e3
}

// Does what the lines say, with locks on the keys that it chooses.
func run(open func(key string) Lock) {
	warm := open(fmt.Sprintf("warm/%d", os.Getpid()))
	warm.acquire()
	warm.release()
	// Some are sessions, which are opened once.
	var bench, own, stock []Lock
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := strings.Split(input.Text(), " ")
		switch words[0] {
		case "cycle":
			for n := len(own); len(words) == 3 && n < int(number(words[1])); n++ {
				own = append(own, open(fmt.Sprintf("free/%d", n)))
			}
			cycle(open, own, words[1:])
		case "hold":
			if bench == nil {
				bench = []Lock{open("bench")}
			}
			bench[0].acquire()
			fmt.Println("acquired", now())
			input.Scan()
			released := now()
			bench[0].release()
			fmt.Println("released", released)
		case "take":
			for n := len(stock); n < int(number(words[1])); n++ {
				stock = append(stock, open(fmt.Sprintf("stock/%d", n)))
				stock[n].acquire()
			}
			fmt.Println("taken")
		case "held":
			still := 0
			for _, lock := range stock {
				if lock.held() {
					still++
				}
			}
			fmt.Println(still)
		case "cpu":
			fmt.Println(cpu())
		default:
			return
		}
	}
}

// Counts in the buckets of src/times.rs.
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
	acquires, cycles           times
}

func (t *task) seen() [8]byte {
	var seen [8]byte
	_, err := t.scene.ReadAt(seen[:], 0)
	check(err)
	return seen
}

func (t *task) turns(lock Lock, until int64) {
	for start := now(); start < until; {
		lock.acquire()
		acquired := now()
		t.acquires.record(acquired - start)
		if t.scene == nil {
			t.pairs++
		} else if acquired < until {
			// What comes too late is no turn: then everybody gives up the contest.
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
		lock.release()
		end := now()
		t.cycles.record(end - start)
		start = end
	}
}

// TASKS UNTIL [SCENE NUMBER]
func cycle(open func(key string) Lock, locks []Lock, words []string) {
	until, process := number(words[1]), int64(0)
	var scene *os.File
	if len(words) > 2 {
		var err error
		scene, err = os.OpenFile(words[2], os.O_RDWR, 0)
		check(err)
		process = number(words[3])
	}
	before, start := cpu(), now()
	tasks := make([]task, number(words[0]))
	var all sync.WaitGroup
	for n := range tasks {
		var lock Lock
		if scene != nil {
			lock = open("bench")
		} else {
			lock = locks[n]
		}
		tasks[n].scene = scene
		binary.LittleEndian.PutUint64(tasks[n].name[:], 1<<63|uint64(process)<<32|uint64(n))
		all.Add(1)
		go func() {
			defer all.Done()
			tasks[n].turns(lock, until)
		}()
	}
	all.Wait()
	seconds, took := time.Duration(now()-start).Seconds(), cpu()-before
	var handovers, overlaps int64
	var pairs []string
	var acquires, cycles times
	for n := range tasks {
		t := &tasks[n]
		acquires.merge(&t.acquires)
		cycles.merge(&t.cycles)
		handovers, overlaps = handovers+t.handovers, overlaps+t.overlaps
		pairs = append(pairs, fmt.Sprint(t.pairs))
	}
	fmt.Println(handovers, overlaps, seconds, took, strings.Join(pairs, " "), &acquires, &cycles)
}
