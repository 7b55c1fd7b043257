// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// sweep removes what processes left behind that ended with connections open,
// and tells handle of the end of those connections.
func (s *Sight) sweep(handle func(Event)) error {
	// Process ids of another pid namespace would mean others here.
	if int(s.control.OwnTgid) != os.Getpid() {
		return nil
	}
	gone := make(map[uint32]bool)
	dead := func(pid uint32) bool {
		is, known := gone[pid]
		if !known {
			is = errors.Is(unix.Kill(int(pid), 0), unix.ESRCH)
			gone[pid] = is
		}
		return is
	}
	var key sightConnKey
	var conn sightConn
	var keys []sightConnKey
	for it := s.objs.Conns.Iterate(); it.Next(&key, &conn); {
		if !dead(key.Tgid) {
			continue
		}
		keys = append(keys, key)
		if conn.Spoke != 0 {
			handle(Event{Kind: Close, Library: Library(conn.Library), PID: key.Tgid, Conn: key.Ptr})
		}
	}
	if err := remove(s.objs.Conns, keys); err != nil {
		return err
	}

	keys = keys[:0]
	var calls sightCalls
	for it := s.objs.GoroutineCalls.Iterate(); it.Next(&key, &calls); {
		if dead(key.Tgid) {
			keys = append(keys, key)
		}
	}
	if err := remove(s.objs.GoroutineCalls, keys); err != nil {
		return err
	}

	var cookie uint64
	var cookies []uint64
	for it := s.objs.Owners.Iterate(); it.Next(&cookie, &key); {
		if dead(key.Tgid) {
			cookies = append(cookies, cookie)
		}
	}
	return remove(s.objs.Owners, cookies)
}

// remove deletes keys that may be gone by now.
func remove[K any](m *ebpf.Map, keys []K) error {
	for _, k := range keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("sweep %s: %w", m, err)
		}
	}
	return nil
}
