// Two locks on Redis.
package main

import (
	"context"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// The mutex of redsync with the package's own pauses and ttl. It gives up after 32 tries, so it is
// asked again. It does not renew.
func redsyncMutexes(url string) func(ttl time.Duration) func(key string) Lock {
	options, err := redis.ParseURL(url)
	check(err)
	sync := redsync.New(goredis.NewPool(redis.NewClient(options)))
	return func(time.Duration) func(key string) Lock {
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
