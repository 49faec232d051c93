// What a process of a measurement does, for locks in Go. It speaks the words of the Rust child.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
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
		held(open(time.Duration(number(rest[1]))*time.Millisecond), int(number(rest[0])))
	default:
		check(fmt.Errorf("no role %q", role))
	}
}

type task struct {
	scene                      *os.File
	name                       [8]byte
	pairs, handovers, overlaps int64
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
			for now() < until {
				locks[n].acquire()
				// What comes too late is not counted: then everybody gives up the contest.
				if now() < until {
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
	for _, t := range tasks {
		handovers, overlaps = handovers+t.handovers, overlaps+t.overlaps
		pairs = append(pairs, fmt.Sprint(t.pairs))
	}
	fmt.Println(handovers, overlaps, took, strings.Join(pairs, " "))
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

// For each line `TASKS MILLISECONDS` says how many cycles a second, and the processor time of one.
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
		done := make([]int64, tasks)
		var all sync.WaitGroup
		for n := range done {
			all.Add(1)
			go func() {
				defer all.Done()
				for now() < until {
					locks[n].acquire()
					locks[n].release()
					done[n]++
				}
			}()
		}
		all.Wait()
		var sum float64
		for _, count := range done {
			sum += float64(count)
		}
		fmt.Println(sum/(float64(now()-start)/1e9), (cpu()-before)/sum)
	}
}

// Takes many; tells its processor time when asked, and in the end how many of them are still held.
func held(open func(key string) Lock, count int) {
	var locks []Lock
	for n := 0; n < count; n++ {
		lock := open(fmt.Sprintf("stock/%d", n))
		lock.acquire()
		locks = append(locks, lock)
	}
	fmt.Println("ready")
	for text, ok := line(); ok && text == "cpu"; text, ok = line() {
		fmt.Println(cpu())
	}
	still := 0
	for _, lock := range locks {
		if lock.held() {
			still++
		}
	}
	fmt.Println(still)
}
