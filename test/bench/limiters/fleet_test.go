// SPDX-License-Identifier: Apache-2.0

package limiters

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/redisurl"
	store "github.com/egressd/egressd/userspace/fleet"
	"github.com/egressd/egressd/userspace/mono"
)

// limiter is one host's way to a limit that hosts share: acquire returns when a
// request may go.
type limiter interface {
	acquire(ctx context.Context) error
	close()
}

// fleetHosts is how many hosts share the limit.
const fleetHosts = 8

// BenchmarkFleet measures limits that eight hosts share through a redis-server on
// this machine: round trips to it for each request, and how much longer requests
// wait than with a limiter that costs nothing and lets them go in their order.
// They come at random, at 80 % of the rate, to a random host, the same for each
// limiter; one operation is one request. A bucket of a tenth of a second is full
// when the first comes.
//
// A request that overtakes others, since its host had a unit and theirs had not,
// waits less than nothing more; those that it overtook wait more.
func BenchmarkFleet(b *testing.B) {
	addr := redisServer(b)
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64})
	defer client.Close()
	for _, rate := range []int{5, 100, 5000} {
		for _, kind := range []string{"egressd", "redis_rate", "token-bucket-script"} {
			b.Run(fmt.Sprintf("%d per s/%s", rate, kind), func(b *testing.B) {
				var trips atomic.Int64
				hosts := make([]limiter, fleetHosts)
				key := fmt.Sprintf("bench/%s/%d-%d", kind, rate, time.Now().UnixNano())
				burst := max(1, rate/10)
				for i := range hosts {
					switch kind {
					case "egressd":
						hosts[i] = newMember(b, addr, key, i, rate, burst, &trips)
					case "redis_rate":
						hosts[i] = &perRequest{trips: &trips, ask: askRedisRate(client, key, rate, burst)}
					default:
						hosts[i] = &perRequest{trips: &trips, ask: askScript(client, key, rate, burst)}
					}
				}
				offer(b, hosts, rate, burst, &trips)
			})
		}
	}
}

// offer sends b.N requests to hosts and reports how they fared.
func offer(b *testing.B, hosts []limiter, rate, burst int, trips *atomic.Int64) {
	for _, h := range hosts {
		defer h.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	rnd := rand.New(rand.NewPCG(1, 2))
	added := make([]time.Duration, b.N)
	var all sync.WaitGroup
	// Connections and scripts are not what is measured.
	for _, h := range hosts {
		all.Go(func() {
			if err := h.acquire(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	time.Sleep(time.Duration(burst) * time.Second / time.Duration(rate)) // the bucket is full
	trips.Store(0)
	b.ResetTimer()
	due := time.Now()
	none := newIdeal(due, rate, burst)
	for i := range b.N {
		due = due.Add(time.Duration(rnd.ExpFloat64() / (0.8 * float64(rate)) * float64(time.Second)))
		time.Sleep(time.Until(due))
		best, h := none.next(due), hosts[rnd.IntN(len(hosts))]
		all.Go(func() {
			if err := h.acquire(ctx); err != nil {
				b.Error(err)
			}
			added[i] = time.Since(best)
		})
	}
	all.Wait()
	b.StopTimer()
	slices.Sort(added)
	b.ReportMetric(float64(trips.Load())/float64(b.N), "trips/request")
	b.ReportMetric(added[b.N/2].Seconds()*1e3, "added-p50-ms")
	b.ReportMetric(added[b.N*99/100].Seconds()*1e3, "added-p99-ms")
}

// ideal is a limiter that costs nothing: GCRA, in the order of arrival.
type ideal struct {
	tat, last time.Time
	every     time.Duration
	tolerance time.Duration
}

func newIdeal(now time.Time, rate, burst int) *ideal {
	every := time.Second / time.Duration(rate)
	return &ideal{tat: now, last: now, every: every, tolerance: every * time.Duration(burst-1)}
}

// next is when the request that comes at due may go.
func (l *ideal) next(due time.Time) time.Time {
	for _, t := range []time.Time{due, l.tat.Add(-l.tolerance)} {
		if l.last.Before(t) {
			l.last = t
		}
	}
	if l.tat.Before(l.last) {
		l.tat = l.last
	}
	l.tat = l.tat.Add(l.every)
	return l.last
}

// perRequest asks for each request until it is let go.
type perRequest struct {
	trips *atomic.Int64
	ask   func(context.Context) (wait time.Duration, err error)
}

func (p *perRequest) close() {}

func (p *perRequest) acquire(ctx context.Context) error {
	for {
		p.trips.Add(1)
		wait, err := p.ask(ctx)
		if err != nil || wait <= 0 {
			return err
		}
		time.Sleep(wait)
	}
}

func askRedisRate(client *redis.Client, key string, rate, burst int) func(context.Context) (time.Duration, error) {
	l := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: rate, Burst: burst, Period: time.Second}
	return func(ctx context.Context) (time.Duration, error) {
		r, err := l.Allow(ctx, key, limit)
		if err != nil || r.Allowed > 0 {
			return 0, err
		}
		return r.RetryAfter, nil
	}
}

// tokenBucket is the script of tutorials, by the server's clock: what is missing
// to a token, in seconds, or 0 if one was taken.
var tokenBucket = redis.NewScript(`
local rate, capacity = tonumber(ARGV[1]), tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
local state = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local tokens, ts = tonumber(state[1]) or capacity, tonumber(state[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate)
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = (1 - tokens) / rate end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'ts', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], 60)
return tostring(wait)`)

func askScript(client *redis.Client, key string, rate, burst int) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		text, err := tokenBucket.Run(ctx, client, []string{key}, rate, burst).Text()
		if err != nil {
			return 0, err
		}
		seconds, err := strconv.ParseFloat(text, 64)
		return time.Duration(seconds * float64(time.Second)), err
	}
}

// member is a host of a fleet: fleet.Lane, driven as a daemon does.
type member struct {
	lane    *fleet.Lane
	store   *store.Store
	arrive  chan chan struct{}
	results chan func(now ledger.Time)
	stop    chan struct{}
	calls   sync.WaitGroup
	done    chan struct{}
}

func newMember(b *testing.B, addr, key string, i, rate, burst int, trips *atomic.Int64) *member {
	url, err := redisurl.Parse("redis://" + addr)
	if err != nil {
		b.Fatal(err)
	}
	s, err := store.New(store.Config{URL: url, Observe: func(o store.Outcome) { trips.Add(int64(o.Trips)) }})
	if err != nil {
		b.Fatal(err)
	}
	m := &member{
		store: s, arrive: make(chan chan struct{}), results: make(chan func(ledger.Time), 8),
		stop: make(chan struct{}), done: make(chan struct{}),
		lane: fleet.New(fleet.Config{
			Lane: key, Host: fmt.Sprint("host", i), Hosts: fleetHosts, Loss: fleet.LossClosed,
			Limit: fleet.Limit{Interval: time.Second / time.Duration(rate), Burst: uint64(burst)},
		}),
	}
	go m.run()
	return m
}

func (m *member) acquire(ctx context.Context) error {
	ready := make(chan struct{})
	select {
	case m.arrive <- ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *member) run() {
	defer close(m.done)
	var queue []chan struct{}
	for {
		now := mono.Now()
		wake := now.Add(time.Second)
		for len(queue) > 0 {
			_, wait, ok := m.lane.Take(now)
			if !ok {
				if wait > 0 {
					wake = min(wake, now.Add(wait))
				}
				break
			}
			close(queue[0])
			queue = queue[1:]
		}
		m.lane.Want(len(queue), now)
		for f, due := m.lane.Next(now); due; f, due = m.lane.Next(now) {
			m.calls.Go(func() {
				a, err := m.store.Do(context.Background(), f.Call)
				m.results <- func(now ledger.Time) {
					if err != nil {
						m.lane.Failed(f, now)
					} else {
						m.lane.Answered(f, a, now)
					}
				}
			})
		}
		if at, ok := m.lane.Wake(now); ok {
			wake = min(wake, at)
		}
		timer := time.NewTimer(max(0, wake.Sub(mono.Now())))
		select {
		case ready := <-m.arrive:
			queue = append(queue, ready)
		case result := <-m.results:
			result(mono.Now())
		case <-timer.C:
		case <-m.stop:
			return
		}
		timer.Stop()
	}
}

func (m *member) close() {
	close(m.stop)
	<-m.done
	m.calls.Wait()
	_ = m.store.Close()
}

// redisServer starts a server that ends with the benchmark.
func redisServer(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", addr[strings.LastIndexByte(addr, ':')+1:],
		"--save", "", "--appendonly", "no", "--dir", b.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		b.Fatalf("redis-server (Debian: redis-server): %v", err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 1000 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return addr
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatal("redis-server does not listen")
	return ""
}
