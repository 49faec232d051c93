// Locks in Go, in the roles of the measurements: KIND ROLE URL ...
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A client for `etcd://HOST:PORT,HOST:PORT,...`.
func connect(url string) *clientv3.Client {
	_, hosts, _ := strings.Cut(url, "://")
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   strings.Split(hosts, ","),
		DialTimeout: 5 * time.Second,
	})
	check(err)
	return client
}

// The mutex of etcd's concurrency package. A session is one owner, so each task has its own; it is
// kept alive by the package, with the package's own lease of 60 seconds unless a ttl is given.
func sessions(client *clientv3.Client, ttl time.Duration) func(key string) Lock {
	seconds := int(ttl / time.Second)
	return func(key string) Lock {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(seconds))
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

func main() {
	if len(os.Args) < 4 {
		check(fmt.Errorf("KIND ROLE URL ..., not %v", os.Args[1:]))
	}
	role, url, rest := os.Args[2], os.Args[3], os.Args[4:]
	switch kind := os.Args[1]; kind {
	case "etcd-concurrency":
		client := connect(url)
		run(role, rest, func(ttl time.Duration) func(key string) Lock { return sessions(client, ttl) })
	case "redsync":
		run(role, rest, redsyncMutexes(url))
	case "rueidislock":
		run(role, rest, func(ttl time.Duration) func(key string) Lock { return rueidisLocks(url, ttl) })
	default:
		check(fmt.Errorf("no lock %q", kind))
	}
}
