// Locks in Go: KIND URL TTL_MS NUMBER. A ttl of 0 is the package's own.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// The mutex of etcd's concurrency package. A session is one owner, so each task has its own; it is
// kept alive by the package, with the package's own lease of 60 seconds unless a ttl is given.
func sessions(url string, ttl time.Duration) func(key string) Lock {
	_, hosts, _ := strings.Cut(url, "://")
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   strings.Split(hosts, ","),
		DialTimeout: 5 * time.Second,
	})
	check(err)
	return func(key string) Lock {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
		check(err)
		mutex := concurrency.NewMutex(session, "go/"+key)
		background := context.Background()
		return Lock{
			acquire: func() { check(mutex.Lock(background)) },
			release: func() { check(mutex.Unlock(background)) },
			held: func() bool {
				select {
				case <-session.Done():
					return false
				default:
					return true
				}
			},
		}
	}
}

// The mutex of redsync with the package's own pauses and ttl. It gives up after 32 tries, so it is
// asked again. It does not renew.
func redsyncMutexes(url string) func(key string) Lock {
	options, err := redis.ParseURL(url)
	check(err)
	sync := redsync.New(goredis.NewPool(redis.NewClient(options)))
	return func(key string) Lock {
		mutex := sync.NewMutex("redsync/" + key)
		return Lock{
			acquire: func() {
				for mutex.Lock() != nil {
				}
			},
			release: func() {
				_, err := mutex.Unlock()
				check(err)
			},
			held: func() bool { return time.Now().Before(mutex.Until()) },
		}
	}
}

const patience = 5 * time.Second

// The lock of rueidis as its page advises for one server of Redis 7: one key a lock, and no news of
// what one did oneself. One locker serves the whole process; it renews at half of the ttl.
func rueidisLocks(url string, ttl time.Duration) func(key string) Lock {
	_, host, _ := strings.Cut(url, "://")
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{host}},
		KeyValidity:    ttl,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	check(err)
	return func(key string) Lock {
		var held context.Context
		var release context.CancelFunc
		return Lock{
			acquire: func() {
				// A waiter may miss a release, and then it waits on a free key for ever: so it asks
				// again after as long as an unrenewed lock of the package would last.
				for ok := false; !ok; {
					ctx, giveUp := context.WithCancel(context.Background())
					timer := time.AfterFunc(patience, giveUp)
					var err error
					held, release, err = locker.WithContext(ctx, key)
					if ok = err == nil && timer.Stop(); !ok && err == nil {
						release()
					}
				}
			},
			release: func() { release() },
			held:    func() bool { return held.Err() == nil },
		}
	}
}

func main() {
	if len(os.Args) != 5 {
		check(fmt.Errorf("KIND URL TTL_MS NUMBER, not %v", os.Args[1:]))
	}
	url, ttl := os.Args[2], time.Duration(number(os.Args[3]))*time.Millisecond
	switch kind := os.Args[1]; kind {
	case "etcd-concurrency":
		run(sessions(url, ttl))
	case "redsync":
		run(redsyncMutexes(url))
	case "rueidislock":
		run(rueidisLocks(url, ttl))
	default:
		check(fmt.Errorf("no lock %q", kind))
	}
}
