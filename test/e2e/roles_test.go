// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// roleName is the variable that makes this test binary play a client, so that
// it can be put into a cgroup, a namespace or another user's hands.
const roleName = "EGRESSD_E2E_ROLE"

const (
	roleLoop   = "loop"   // HOST:PORT: a request, a pause of a second, and so on
	roleFlood  = "flood"  // HOST:PORT SPAN: one request after the other
	roleCrowd  = "crowd"  // URL SPAN COUNT: as many at a time
	roleProbe  = "probe"  // HOST:PORT SPAN PAUSE: one connection after the other, told as JSON
	roleRush   = "rush"   // HOST:PORT SPAN PAUSE: like probe, but none waits for the one before
	roleChurn  = "churn"  // HOST:PORT COUNT AT-ONCE: opens and closes connections
	roleOrigin = "origin" // answers on 127.0.0.1 and ::1, tells the port

	roleSOCKS4a = "socks4a" // HOST:PORT: a proxy there
	roleProxied = "proxied" // PROXY-URL URL COUNT: requests through a proxy, one after the other
)

// play plays a role and returns the exit status.
func play(role string, args []string) int {
	var err error
	switch role {
	case roleLoop:
		loop("http://" + args[0] + "/")
	case roleFlood:
		err = flood("http://"+args[0]+"/", duration(args[1]))
	case roleCrowd:
		crowd(args[0], duration(args[1]), number(args[2]))
	case roleProbe:
		err = probe(args[0], duration(args[1]), duration(args[2]), os.Stdout)
	case roleRush:
		err = rush(args[0], duration(args[1]), duration(args[2]), os.Stdout)
	case roleChurn:
		err = churn(args[0], number(args[1]), number(args[2]))
	case roleOrigin:
		err = serveOrigin(os.Stdout)
	case roleSOCKS4a:
		err = serveSOCKS4a(args[0])
	case roleProxied:
		err = proxied(args[0], args[1], number(args[2]))
	default:
		err = fmt.Errorf("no role %s", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func loop(url string) {
	for ; ; time.Sleep(time.Second) {
		resp, err := http.Get(url)
		if err != nil {
			fmt.Println("ERR:", err)
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func flood(url string, span time.Duration) error {
	for end := time.Now().Add(span); time.Now().Before(end); {
		resp, err := http.Get(url)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		resp.Body.Close()
	}
	return nil
}

// crowd sends to url by count goroutines until span is over.
func crowd(url string, span time.Duration, count int) {
	ctx, stop := context.WithTimeout(context.Background(), span)
	defer stop()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: count}}
	var wg sync.WaitGroup
	for range count {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
				if err != nil {
					panic(err) // the test wrote the URL
				}
				resp, err := client.Do(req)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// attempt is what became of one connection of a probe.
type attempt struct {
	At     int64  // when connect() was called, ns of the wall clock
	Took   int64  // until the answer was there, ns
	Native bool   // the origin saw the client's own socket
	Peer   string // by getpeername(2)
	Status int    // of the answer
	Error  string
	Where  string // that the error came from: connect, write or read
}

// probe makes one connection after the other, at least one, each with one
// request to an origin that answers with the address that it sees. Each takes
// at most five seconds.
func probe(addr string, span, pause time.Duration, out io.Writer) error {
	enc := json.NewEncoder(out)
	for end := time.Now().Add(span); ; time.Sleep(pause) {
		a := try(addr)
		if err := enc.Encode(a); err != nil || !time.Now().Before(end) {
			return err
		}
	}
}

// rush is probe with a client of its own, and its own clock, for each connection.
func rush(addr string, span, pause time.Duration, out io.Writer) error {
	enc := json.NewEncoder(out)
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(pause) {
		all.Go(func() {
			a := try(addr)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, enc.Encode(a))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// redirectedNow reports whether the kernel has a token of egressd for the peer of
// one of our sockets, whatever getpeername says.
func redirectedNow(conn net.Conn) bool {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	var st unix.Stat_t
	if err := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }); err != nil {
		return false
	}
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		// Local and remote address are fields 1 and 2, the inode is field 9.
		// Addresses are written as the words that they are in memory.
		f := strings.Fields(line)
		if len(f) > 9 && f[9] == strconv.FormatUint(st.Ino, 10) {
			return strings.HasSuffix(strings.Split(f[2], ":")[0], "657F")
		}
	}
	return false
}

func try(addr string) (a attempt) {
	begin := time.Now()
	defer func() { a.At, a.Took = begin.UnixNano(), int64(time.Since(begin)) }()
	failed := func(where string, err error) attempt {
		a.Where, a.Error = where, err.Error()
		return a
	}
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return failed("connect", err)
	}
	defer conn.Close()
	a.Peer = conn.RemoteAddr().String()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return failed("connect", err)
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", addr); err != nil {
		return failed("write", err)
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return failed("read", err)
	}
	head, body, ok := cutHead(text)
	if !ok {
		return failed("read", fmt.Errorf("no answer: %q", text))
	}
	if _, err := fmt.Sscanf(head, "HTTP/1.1 %d", &a.Status); err != nil {
		return failed("read", err)
	}
	// The proxy's socket may by chance have the port of ours.
	a.Native = body == conn.LocalAddr().String() && !redirectedNow(conn)
	return a
}

// churn opens and closes connections: every other one without a word, the
// rest after one request.
func churn(addr string, count, atOnce int) error {
	work := make(chan int)
	failed := make(chan error, atOnce)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range work {
				if err := churnOne(addr, i%2 == 0); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	for i := range count {
		work <- i
	}
	close(work)
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func churnOne(addr string, silent bool) error {
	if !silent {
		if a := try(addr); a.Error != "" || a.Status != http.StatusOK {
			return fmt.Errorf("churn: got %+v", a)
		}
		return nil
	}
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}
