// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/redisurl"
)

// everyKind makes one call of each kind and checks that the kinds work together.
func everyKind(t *testing.T, s *Store, lane string) {
	t.Helper()
	limit := shared.Limit{Interval: time.Second, Burst: 1}
	call := shared.Call{Lane: lane, Limit: limit, Units: 1, Term: time.Second, Factor: 0.5, Step: 1.5}
	for _, kind := range []shared.Kind{shared.Watch, shared.Book, shared.Lease, shared.Give, shared.Close, shared.Reward} {
		call.Kind = kind
		a := must(t, s, call)
		switch kind {
		case shared.Book, shared.Lease:
			if a.Granted != 1 || a.Grant <= call.Grant {
				t.Errorf("%s: %v: %+v", lane, kind, a)
			}
			call.Grant = a.Grant
		case shared.Give:
			if a.Granted != 1 {
				t.Errorf("%s: %v: %+v", lane, kind, a)
			}
		case shared.Close:
			if a.Epoch != 1 || a.Interval != 2*time.Second {
				t.Errorf("%s: %v: %+v", lane, kind, a)
			}
			call.Epoch = 1
		case shared.Reward:
			if a.Interval >= 2*time.Second {
				t.Errorf("%s: %v: %+v", lane, kind, a)
			}
		}
	}
}

// openssl runs openssl in a folder.
func openssl(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("openssl", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("openssl %v: %v\n%s", args, err, out)
	}
}

func TestTLSAndPasswords(t *testing.T) {
	dir := t.TempDir()
	key := []string{"-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"}
	write(t, dir, "san", "subjectAltName=DNS:store.example.com,IP:127.0.0.1\n")
	for _, ca := range []string{"ca", "other"} {
		openssl(t, dir, append([]string{"req", "-x509", "-subj", "/CN=" + ca, "-keyout", ca + ".key", "-out", ca + ".pem"}, key...)...)
	}
	openssl(t, dir, append([]string{"req", "-subj", "/CN=store", "-keyout", "store.key", "-out", "store.csr"}, key...)...)
	openssl(t, dir, "x509", "-req", "-in", "store.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
		"-extfile", "san", "-out", "store.pem")
	file := func(name string) string { return filepath.Join(dir, name) }
	port := freePort(t)
	s := &server{t: t, port: port, dir: dir, args: []string{
		"--port 0", "--tls-port", fmt.Sprint(port), "--tls-cert-file", file("store.pem"), "--tls-key-file", file("store.key"),
		"--tls-ca-cert-file", file("ca.pem"), "--tls-auth-clients", "yes", "--requirepass", "Sup3rSecret",
		"--user", "fleet", "on", ">An0therSecret", "~egressd:1:*", "&egressd:1:*", "+@all",
	}}
	s.start()
	t.Cleanup(s.kill)

	certs := "ca=" + file("ca.pem") + "&cert=" + file("store.pem") + "&key=" + file("store.key")
	everyKind(t, open(t, "rediss://:Sup3rSecret@"+s.addr()+"?"+certs, Config{}, ""), "a/b/c")
	everyKind(t, open(t, "rediss://fleet:An0therSecret@"+s.addr()+"?"+certs+"&server_name=store.example.com", Config{}, ""), "d/e/f")

	var log bytes.Buffer
	for _, tc := range []struct {
		url   string
		class error
	}{
		{"rediss://:Wr0ngSecret@" + s.addr() + "?" + certs, ErrRefused},
		{"rediss://fleet:Wr0ngSecret@" + s.addr() + "?" + certs, ErrRefused},
		{"rediss://" + s.addr() + "?" + certs, ErrRefused},
		{"rediss://:Sup3rSecret@" + s.addr() + "?ca=" + file("other.pem"), ErrDown},
		{"rediss://:Sup3rSecret@" + s.addr() + "?" + certs + "&server_name=else.example.com", ErrDown},
		{"rediss://:Sup3rSecret@" + s.addr() + "?ca=" + file("ca.pem"), ErrDown},
	} {
		store := open(t, tc.url, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, "")
		var err error
		for begin := time.Now(); time.Since(begin) < 2*unheard; time.Sleep(unheard / 4) {
			_, err = store.Do(background, shared.Call{Kind: shared.Watch, Lane: "l", Host: "h", Limit: slow})
			failed(t, err, tc.class)
		}
		fmt.Fprintf(&log, "%v\n%+v\n%#v\n", err, err, err)
	}
	if text := log.String(); strings.Contains(text, "Secret") || strings.Count(text, "fleet store lost") != 6 {
		t.Errorf("in logs and errors:\n%s", text)
	}
	for _, files := range []string{"ca=" + file("none"), "ca=" + file("san"), "cert=" + file("san") + "&key=" + file("none")} {
		u, err := redisurl.Parse("rediss://:Sup3rSecret@h?" + files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{URL: u}); err == nil || strings.Contains(err.Error(), "Secret") {
			t.Errorf("error %v", err)
		}
	}
}

// TestTooFewRights is a user that may not run scripts.
func TestTooFewRights(t *testing.T) {
	s := serve(t)
	s.do("ACL", "SETUSER", "weak", "on", ">pw", "~*", "+get")
	store := open(t, "redis://weak:pw@"+s.addr(), Config{}, "")
	_, err := store.Do(background, shared.Call{Kind: shared.Watch, Lane: "l", Host: "h", Limit: slow})
	failed(t, err, ErrRefused)
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, "--unixsocket", path, "--databases", "4")
	eventually(t, "the socket is there", func() bool { _, err := os.Stat(path); return err == nil })
	everyKind(t, open(t, "redis-unix://"+path+"?db=3", Config{}, ""), "a/b/c")
}

// TestCluster: all keys of a call are in one slot, whatever the lane's name, and
// notices go to all nodes.
func TestCluster(t *testing.T) {
	t.Parallel()
	s := serve(t, "--cluster-enabled", "yes")
	s.do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	eventually(t, "the cluster is whole", func() bool { return strings.Contains(s.do("CLUSTER", "INFO").(string), "cluster_state:ok") })
	url := "redis-cluster://" + s.addr()
	store := open(t, url, Config{}, "")
	notices := listen(t, open(t, url, Config{}, ""))
	next(t, notices)
	for _, lane := range []string{"store/store.example.com/direct", "}{", "a/{b}/c", "{}", "a;path=/%7B"} {
		everyKind(t, store, lane)
		for n := next(t, notices); n.Lane != lane; n = next(t, notices) {
		}
	}
}

// watched is a master, with more arguments, and a replica that a sentinel watches.
func watched(t *testing.T, args ...string) (master, replica *server, url string) {
	t.Helper()
	master = serve(t, args...)
	replica = serve(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.port))
	dir := t.TempDir()
	guard := &server{t: t, port: freePort(t), dir: dir}
	conf := write(t, dir, "sentinel.conf", fmt.Sprintf(
		"sentinel monitor m 127.0.0.1 %d 1\nsentinel down-after-milliseconds m 500\nsentinel failover-timeout m 3000\n", master.port))
	guard.cmd = exec.Command("redis-server", conf, "--sentinel", "--bind", "127.0.0.1", "--port", fmt.Sprint(guard.port), "--dir", dir)
	if err := guard.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(guard.kill)
	eventually(t, "the sentinel knows the replica", func() bool {
		v, err := guard.admin().Do(background, "SENTINEL", "REPLICAS", "m").Slice()
		return err == nil && len(v) == 1
	})
	return master, replica, "redis-sentinel://" + guard.addr() + "/m"
}

// TestSentinels kills a master that sentinels watch: the store finds the new one.
func TestSentinels(t *testing.T) {
	t.Parallel()
	master, replica, url := watched(t)
	store := open(t, url, Config{}, "")
	first := must(t, store, shared.Call{Kind: shared.Close, Limit: slow, Until: time.Hour, Factor: 0.5})
	eventually(t, "the replica follows", func() bool {
		return replica.admin().Exists(background, keysOf("store/store.example.com/direct")[0]).Val() == 1
	})
	master.kill()
	var after shared.Answer
	eventually(t, "the replica took over", func() bool {
		var err error
		after, err = store.Do(background, shared.Call{Kind: shared.Watch, Lane: "store/store.example.com/direct", Host: "host", Limit: slow})
		return err == nil
	})
	if after.Epoch != first.Epoch || after.OpenAfter < 50*time.Minute {
		t.Errorf("after the failover: %+v", after)
	}
}

// TestOldMasterGoesOn stops a master for so long that a replica takes over: who
// listened to it hears the new one, though the old one goes on as a master. The
// sentinel cannot make it another's replica, as otherwise it would after a while.
func TestOldMasterGoesOn(t *testing.T) {
	t.Parallel()
	master, replica, url := watched(t, "--rename-command", "SLAVEOF", "", "--rename-command", "REPLICAOF", "")
	a, b := open(t, url, Config{Timeout: time.Second}, ""), open(t, url, Config{Timeout: time.Second}, "")
	notices := listen(t, b)
	next(t, notices)
	watch := shared.Call{Kind: shared.Watch, Lane: "l", Host: "h", Limit: slow}
	must(t, b, watch)
	master.signal(syscall.SIGSTOP)
	eventually(t, "the replica took over", func() bool {
		v, err := replica.admin().Do(background, "ROLE").Slice()
		return err == nil && v[0] == "master"
	})
	master.signal(syscall.SIGCONT)
	eventually(t, "a host finds the replica", func() bool {
		_, err := b.Do(background, watch)
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		return err == nil && b.server.addr == replica.addr()
	})
	next(t, notices) // the subscription begins anew
	must(t, a, shared.Call{Kind: shared.Close, Lane: "l", Limit: slow, Until: time.Minute, Factor: 0.5})
	if n := next(t, notices); n.Lane != "l" || n.OpenAfter != time.Minute {
		t.Errorf("notice %+v", n)
	}
}
