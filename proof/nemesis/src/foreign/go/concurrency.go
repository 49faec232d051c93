// The mutex of etcd's concurrency package. A session is one owner, so each task has its own. The token is the revision that
// created the key, as Latchwork's is. The holder relies on a hold until the session's Done fires, and asks at least once in a third
// of the ttl: the session renews its lease so often, and what the lease lasts then is less than a ttl.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

type sessionLocks struct {
	*Worker
	hosts   []string
	client  *clientv3.Client
	session *concurrency.Session
	// When Done fired, or 0.
	doneAt *atomic.Int64
}

func sessions(w *Worker) (func() Locks, error) {
	_, rest, _ := strings.Cut(w.orders["store"], "://")
	rest, _, _ = strings.Cut(rest, "?")
	return func() Locks { return &sessionLocks{Worker: w, hosts: strings.Split(rest, ",")} }, nil
}

// A session with a client of its own: closing the client ends every call that hangs.
func (s *sessionLocks) open(limit time.Duration) error {
	if s.session != nil && s.doneAt.Load() == 0 {
		return nil
	}
	s.abandon()
	client, err := clientv3.New(clientv3.Config{Endpoints: s.hosts, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	timer := time.AfterFunc(limit, func() { _ = client.Close() })
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(s.ttl/int64(time.Second))))
	if err != nil || !timer.Stop() {
		_ = client.Close()
		return errors.Join(err, errors.New("no session"))
	}
	doneAt := new(atomic.Int64)
	go func() {
		<-session.Done()
		doneAt.Store(bootTime())
	}()
	s.client, s.session, s.doneAt = client, session, doneAt
	return nil
}

// Ends the session: what it has left in a queue ends with its lease at the latest.
func (s *sessionLocks) abandon() {
	if s.session == nil {
		return
	}
	client := s.client
	timer := time.AfterFunc(time.Duration(s.ttl/4), func() { _ = client.Close() })
	_ = s.session.Close()
	if timer.Stop() {
		_ = client.Close()
	}
	s.client, s.session = nil, nil
}

func (s *sessionLocks) Close() { s.abandon() }

func (s *sessionLocks) Acquire(name string, patience time.Duration, _ *rand.Rand) (Hold, error) {
	if err := s.open(patience); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// After the patience, the package deletes its key without a limit.
	client := s.client
	timer := time.AfterFunc(patience+time.Duration(s.ttl/4), func() { _ = client.Close() })
	defer timer.Stop()
	mutex := concurrency.NewMutex(s.session, name)
	if err := mutex.Lock(ctx); err != nil {
		if ctx.Err() != nil && client.Ctx().Err() == nil {
			return nil, nil
		}
		s.abandon()
		return nil, err
	}
	seen := bootTime()
	token, err := s.tokenOf(mutex)
	if err != nil {
		s.abandon()
		return nil, err
	}
	return &owned{s, s.session, s.doneAt, mutex, seen, token}, nil
}

// The revision that created the key, if the key is this session's.
func (s *sessionLocks) tokenOf(mutex *concurrency.Mutex) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.ttl/2))
	defer cancel()
	found, err := s.client.Get(ctx, mutex.Key())
	if err != nil {
		return 0, err
	}
	if len(found.Kvs) == 0 || found.Kvs[0].Lease != int64(s.session.Lease()) {
		return 0, errors.New("its key is gone")
	}
	return found.Kvs[0].CreateRevision << 10, nil
}

type owned struct {
	*sessionLocks
	session *concurrency.Session
	doneAt  *atomic.Int64
	mutex   *concurrency.Mutex
	seen    int64
	token   int64
}

func (o *owned) Token() int64 { return o.token }

func (o *owned) Seen() int64 { return o.seen }

func (o *owned) Longest() float64 { return 0.8 }

func (o *owned) Check(at int64) (int64, *Lost) {
	if since := o.doneAt.Load(); since != 0 {
		return 0, &Lost{since, "session_ended"}
	}
	return at + o.ttl/3, nil
}

// The session does that.
func (o *owned) Extend(int64) *Lost { return nil }

// The package does not say whether the key was there.
func (o *owned) Release() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(o.ttl/2))
	defer cancel()
	if err := o.mutex.Unlock(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "a release: %v\n", err)
		// It deletes by name: one that comes late must not find the next hold.
		o.abandon()
		return "failed"
	}
	return "yes"
}

func (o *owned) GiveUp() { o.abandon() }
