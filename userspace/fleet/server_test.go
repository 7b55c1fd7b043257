// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/redisurl"
)

// patient is the timeout of tests in which nothing is late on purpose: a busy
// machine is no fault.
const patient = 20 * time.Second

// server is a redis-server of a test's own.
type server struct {
	t    *testing.T
	port int
	args []string
	dir  string
	cmd  *exec.Cmd
	out  *bytes.Buffer
}

// given are the ports that freePort returned.
var given sync.Map

// freePort is a port on which nobody listens, another one each time. It and its bus
// port in a cluster, 10000 above, are below those that the kernel gives to others.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 12000 + rand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err != nil {
			continue
		}
		_ = l.Close()
		if _, taken := given.LoadOrStore(port, true); !taken {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// serve starts a server with the given arguments after those that all have.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{t: t, port: freePort(t), args: args, dir: t.TempDir()}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start starts the server, again with nothing in it after kill.
func (s *server) start() {
	s.t.Helper()
	args := append([]string{
		"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--daemonize", "no", "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0",
	}, s.args...)
	if !strings.Contains(strings.Join(args, " "), "--port ") {
		args = append(args, "--port", strconv.Itoa(s.port))
	}
	s.out = new(bytes.Buffer)
	s.cmd = exec.Command("redis-server", args...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("redis-server (Debian: redis-server): %v", err)
	}
	eventually(s.t, "the server listens", func() bool {
		conn, err := net.Dial("tcp", s.addr())
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

func (s *server) addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }
func (s *server) url() string  { return "redis://" + s.addr() }

// kill ends the server as kill -9 does.
func (s *server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // "signal: killed", as it should
		s.cmd = nil
	}
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// admin is a client of the test's own, without the store's limits of time.
func (s *server) admin() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.addr(), Protocol: 2, DisableIdentity: true})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// do runs a command.
func (s *server) do(args ...any) any {
	s.t.Helper()
	v, err := s.admin().Do(s.t.Context(), args...).Result()
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// eventually waits until what holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 30 s: %s", what)
		}
	}
}

// open makes a store for a URL.
func open(t *testing.T, url string, c Config, clock string) *Store {
	t.Helper()
	var err error
	if c.URL, err = redisurl.Parse(url); err != nil {
		t.Fatal(err)
	}
	if c.Timeout == 0 {
		c.Timeout = patient
	}
	s, err := newStore(c, clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// must makes a call that may not fail.
func must(t *testing.T, s *Store, c shared.Call) shared.Answer {
	t.Helper()
	if c.Lane == "" {
		c.Lane = "store/store.example.com/direct"
	}
	if c.Host == "" {
		c.Host = "host"
	}
	a, err := s.Do(t.Context(), c)
	if err != nil {
		t.Fatalf("%v: %v", c.Kind, err)
	}
	return a
}

// raw makes a call as Do does while there is no trouble, for what only the reply
// tells.
func raw(s *Store, c *shared.Call, id string) (reply, error) {
	k, trouble := s.memory.recall(c.Lane, time.Now())
	return s.once(background, c, id, k, trouble, new(int))
}

// fakeClock is read by scripts in place of the server's clock, from a key of
// the lane.
const fakeClock = "{0, redis.call('GET', KEYS[1] .. ':clock')}"

// clocked is a store on a clock that the test sets.
type clocked struct {
	*Store
	t     *testing.T
	admin *redis.Client
	lane  string
	now   time.Duration // the server's clock
}

func newClocked(t *testing.T, s *server, lane string) *clocked {
	t.Helper()
	c := &clocked{open(t, s.url(), Config{}, fakeClock), t, s.admin(), lane, 0}
	c.set(1_800_000_000 * time.Second)
	return c
}

// set sets the clock.
func (c *clocked) set(now time.Duration) {
	c.t.Helper()
	c.now = now
	// What the store remembers of the server's clock is by the real time, in
	// which nothing passes: it would take each call for one that lay about.
	c.memory.mu.Lock()
	for lane, s := range c.memory.lanes {
		s.clock = now.Microseconds()
		s.ahead, s.open = 0, 0
		c.memory.lanes[lane] = s
	}
	c.memory.mu.Unlock()
	if err := c.admin.Set(c.t.Context(), keysOf(c.lane)[0]+":clock", now.Microseconds(), 0).Err(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clocked) pass(d time.Duration) { c.t.Helper(); c.set(c.now + d) }

func (c *clocked) must(call shared.Call) shared.Answer {
	c.t.Helper()
	call.Lane = c.lane
	return must(c.t, c.Store, call)
}

// conform reports the first slot that does not conform to the limit, of slots in
// order: in some window there are more than burst + rate·τ of them then.
func conform(slots []time.Duration, l shared.Limit) error {
	var tat time.Duration
	for i, s := range slots {
		if i > 0 && s < tat-time.Duration(l.Burst-1)*l.Interval {
			return fmt.Errorf("slot %d of %d comes %v too early", i, len(slots), tat-time.Duration(l.Burst-1)*l.Interval-s)
		}
		tat = max(tat, s) + l.Interval
	}
	return nil
}

// units are the slots of a grant of which the store's clock said now.
func units(a shared.Answer, now time.Duration) (slots []time.Duration) {
	for i := range a.Granted {
		slot := now + a.After
		if a.After > 0 {
			slot += time.Duration(i) * a.Interval
		}
		slots = append(slots, slot)
	}
	return slots
}

// relay is a TCP proxy between a store and its server that can be led to
// another server, and lose answers.
type relay struct {
	l  net.Listener
	mu sync.Mutex
	to string
	// lose is how many answers to EVALSHA shall be lost with their connection.
	lose  int
	conns map[net.Conn]bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, to: to, conns: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.carry(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.lead("")
		all.Wait()
	})
	return r
}

func (r *relay) url() string { return "redis://" + r.l.Addr().String() }

// lead leads all connections from now on to another server, and ends those there
// are.
func (r *relay) lead(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *relay) carry(client net.Conn) {
	r.mu.Lock()
	to := r.to
	r.mu.Unlock()
	upstream, err := net.Dial("tcp", to)
	if err != nil {
		_ = client.Close()
		return
	}
	r.mu.Lock()
	if r.to != to {
		_ = client.Close()
	}
	r.conns[client] = true
	r.mu.Unlock()
	done := make(chan struct{})
	var script bool // the last that was sent is a script: guarded by r.mu
	go func() {
		defer close(done)
		b := make([]byte, 64<<10)
		for {
			n, err := client.Read(b)
			if err != nil {
				break
			}
			r.mu.Lock()
			script = bytes.Contains(bytes.ToLower(b[:n]), []byte("evalsha"))
			r.mu.Unlock()
			if _, err := upstream.Write(b[:n]); err != nil {
				break
			}
		}
		_ = upstream.Close()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := upstream.Read(b)
		if err != nil {
			break
		}
		r.mu.Lock()
		lose := script && r.lose > 0
		if lose {
			r.lose--
		}
		r.mu.Unlock()
		if lose {
			break
		}
		if _, err := client.Write(b[:n]); err != nil {
			break
		}
	}
	_ = client.Close()
	<-done
	r.mu.Lock()
	delete(r.conns, client)
	r.mu.Unlock()
}

// write writes a file into a folder of the test's own.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// failed reports an error that is not of the class.
func failed(t *testing.T, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("got error %v, want %v", err, class)
	}
}

var background = context.Background()
