// redsync's Mutex, at one server, behind Sentinels, at a Cluster, or at several servers that vote. It has no number. The holder
// relies on it until redsync's Until, which counts from before the command. Of long holds, half are extended in time.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	pools "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type mutexes struct {
	*Worker
	sync      *redsync.Redsync
	servers   int
	isCluster bool
}

func redsyncLocks(w *Worker) (func() Locks, error) {
	scheme, rest, _ := strings.Cut(w.orders["store"], "://")
	rest, _, _ = strings.Cut(rest, "?")
	list, path, _ := strings.Cut(rest, "/")
	hosts, limit := strings.Split(list, ","), time.Duration(w.ttl/8)
	// An answer is that of one command: one that is sent again finds what the first did.
	const once = -1
	one := func(host string) redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: host, MaxRetries: once, DialTimeout: limit, ReadTimeout: limit, WriteTimeout: limit,
		})
	}
	var clients []redis.UniversalClient
	switch scheme {
	case "redis":
		clients = append(clients, one(hosts[0]))
	case "redlock":
		for _, host := range hosts {
			clients = append(clients, one(host))
		}
	case "redis+sentinel":
		clients = append(clients, redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: path, SentinelAddrs: hosts, MaxRetries: once,
			DialTimeout: limit, ReadTimeout: limit, WriteTimeout: limit,
		}))
	case "redis+cluster":
		clients = append(clients, redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: hosts, MaxRetries: once, DialTimeout: limit, ReadTimeout: limit, WriteTimeout: limit,
		}))
	default:
		return nil, fmt.Errorf("no way to %s", w.orders["store"])
	}
	var all []pools.Pool
	for _, client := range clients {
		all = append(all, goredis.NewPool(client))
	}
	locks := &mutexes{w, redsync.New(all...), len(all), scheme == "redis+cluster"}
	return func() Locks { return locks }, nil
}

func (m *mutexes) Close() {}

// The name that `latchwork show` gives for others.
func (m *mutexes) stored(name string) string {
	if !m.isCluster {
		return name
	}
	cut := strings.LastIndex(name, ":") + 1
	return name[:cut] + "{" + name[cut:] + "}"
}

func (m *mutexes) Acquire(name string, patience time.Duration, luck *rand.Rand) (Hold, error) {
	ttl := time.Duration(m.ttl)
	mutex := m.sync.NewMutex(m.stored(name),
		redsync.WithExpiry(ttl),
		redsync.WithDriftFactor(float64(m.drift())/float64(m.ttl)),
		redsync.WithTimeoutFactor(0.1),
		redsync.WithRetryDelay(20*time.Millisecond),
		redsync.WithTries(1<<20),
	)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := mutex.LockContext(ctx)
	if err == nil {
		hold := &held{Worker: m.Worker, mutex: mutex, servers: m.servers, lasts: luck.Intn(2) == 0, seen: bootTime()}
		hold.noteUntil()
		return hold, nil
	}
	if errors.Is(err, redsync.ErrFailed) || ctx.Err() != nil {
		return nil, nil
	}
	return nil, err
}

type held struct {
	*Worker
	mutex   *redsync.Mutex
	servers int
	lasts   bool
	seen    int64
	// redsync's Until, on the boot clock.
	until int64
}

func (h *held) Token() int64 { return 0 }

func (h *held) Seen() int64 { return h.seen }

func (h *held) Longest() float64 {
	if h.lasts {
		return 1.5
	}
	return 0.8
}

func (h *held) noteUntil() {
	now := bootTime()
	h.until = now + int64(time.Until(h.mutex.Until()))
}

func (h *held) Check(at int64) (int64, *Lost) {
	if at >= h.until {
		return 0, &Lost{h.until, "expired"}
	}
	return h.until, nil
}

func (h *held) Extend(at int64) *Lost {
	remaining := h.until - at
	// In less than a quarter, an answer may come too late: the holder would ask too late whether it still holds.
	if !h.lasts || remaining < h.ttl/4 || remaining >= h.ttl/2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(h.ttl/4))
	defer cancel()
	extended, err := h.mutex.ExtendContext(ctx)
	switch {
	case extended:
		h.noteUntil()
	case isTaken(err):
		if now := bootTime(); now < h.until {
			return &Lost{now, "taken"}
		}
		return &Lost{h.until, "expired"}
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", h.mutex.Name(), err)
	}
	return nil
}

// Whether so many servers said that it is not this holder's that no majority can have it.
func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

// Whether so many servers said that the key has expired, or is another's, that no majority can have it. What others
// did not answer says nothing.
func (h *held) isOver(err error) bool {
	var several interface{ WrappedErrors() []error }
	if !errors.As(err, &several) {
		return isTaken(err)
	}
	over := 0
	for _, one := range several.WrappedErrors() {
		var taken *redsync.ErrNodeTaken
		if errors.Is(one, redsync.ErrLockAlreadyExpired) || errors.As(one, &taken) {
			over++
		}
	}
	return 2*over >= h.servers
}

func (h *held) Release() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(h.ttl/4))
	defer cancel()
	released, err := h.mutex.UnlockContext(ctx)
	switch {
	case released:
		return "yes"
	case h.isOver(err):
		return "not_held"
	default:
		fmt.Fprintf(os.Stderr, "the release of %s: %v\n", h.mutex.Name(), err)
		return "failed"
	}
}

func (h *held) GiveUp() { h.Release() }
