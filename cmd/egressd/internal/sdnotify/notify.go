// SPDX-License-Identifier: Apache-2.0

// Package sdnotify tells the service manager how the daemon fares, by the
// protocol of sd_notify(3): datagrams to the socket that $NOTIFY_SOCKET names.
package sdnotify

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Notifier sends to the service manager. Its methods are safe for concurrent
// use and do nothing on a nil Notifier, which is what a daemon has that no
// service manager started.
type Notifier struct {
	addr     *net.UnixAddr
	watchdog time.Duration
}

// New reads the manager's wishes from the environment. It returns nil where
// there is no manager. pid is the process that will notify: a watchdog that is
// meant for another process is left alone.
func New(getenv func(string) string, pid int) *Notifier {
	name := getenv("NOTIFY_SOCKET")
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil
	}
	n := &Notifier{addr: &net.UnixAddr{Net: "unixgram", Name: name}}
	if p := getenv("WATCHDOG_PID"); p != "" && p != strconv.Itoa(pid) {
		return n
	}
	if usec, err := strconv.ParseUint(getenv("WATCHDOG_USEC"), 10, 53); err == nil {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// Watchdog is the time within which the manager wants to hear Alive; zero if
// it does not.
func (n *Notifier) Watchdog() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog
}

// Ready says that the start, or a reload, is complete.
func (n *Notifier) Ready(status string) error { return n.send("READY=1\nSTATUS=" + line(status)) }

// Reloading says that a reload begins at now. Managers that asked for it by
// Type=notify-reload match the time with their own record of the signal, so it
// has to be in the same datagram (systemd 253).
func (n *Notifier) Reloading(now ledger.Time) error {
	return n.send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", uint64(now)/1000))
}

// Stopping says that the daemon has begun to stop.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

// Alive feeds the manager's watchdog.
func (n *Notifier) Alive() error { return n.send("WATCHDOG=1") }

// Status shows one line to whoever asks the manager.
func (n *Notifier) Status(status string) error { return n.send("STATUS=" + line(status)) }

// line keeps a text from becoming an assignment of its own.
func line(s string) string { return strings.ReplaceAll(s, "\n", " ") }

func (n *Notifier) send(state string) error {
	if n == nil {
		return nil
	}
	// One socket per message: they are rare, and the manager may have been
	// restarted since the last.
	conn, err := net.DialUnix(n.addr.Net, nil, n.addr)
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}
