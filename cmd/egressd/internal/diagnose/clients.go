// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"slices"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// Clients adds up who asked while connections were looked at. The zero Clients
// is ready. Not safe for concurrent use.
type Clients struct {
	began time.Time
	conns map[uint64]*seen
}

// seen is one connection.
type seen struct {
	pid     uint32
	command string
	lane    string
	blind   bool
	first   int // requests that it had made before the watch
	last    int
}

// Look takes the connections as they are at now.
func (c *Clients) Look(now time.Time, flows []admin.Flow) {
	if c.conns == nil {
		c.conns, c.began = make(map[uint64]*seen), now
	}
	for _, f := range flows {
		s := c.conns[f.Cookie]
		if s == nil {
			s = &seen{pid: f.PID, command: f.Command}
			if opened := now.Add(-time.Duration(f.Age * float64(time.Second))); opened.Before(c.began) {
				s.first = f.Requests
			}
			c.conns[f.Cookie] = s
		}
		s.last = f.Requests
		s.blind = f.Sight == "blind"
		if f.Lane != "" {
			s.lane = f.Lane
		}
	}
}

// share is the part of one process in what was seen.
type share struct {
	Process
	requests int // seen
	part     float64
}

// of lists the processes that asked in a lane, who asked most first. A
// connection that was seen stands for one request at least: it came to make
// one.
func (c *Clients) of(lane string) (all []share, total int) {
	at := map[uint32]int{}
	for _, s := range c.conns {
		if s.lane != lane {
			continue
		}
		n := s.last - s.first
		if s.first == 0 {
			n = max(n, 1)
		}
		if n == 0 {
			continue
		}
		i, known := at[s.pid]
		if !known {
			i = len(all)
			at[s.pid] = i
			all = append(all, share{Process: Process{PID: s.pid, Command: s.command}})
		}
		all[i].requests += n
		total += n
	}
	sortShares(all, total)
	return all, total
}

// sortShares tells the parts of a total, and puts the greatest first.
func sortShares(all []share, total int) {
	for i := range all {
		all[i].part = float64(all[i].requests) / float64(total)
	}
	slices.SortFunc(all, func(a, b share) int {
		return cmp.Or(cmp.Compare(b.requests, a.requests), cmp.Compare(a.PID, b.PID))
	})
}

// command is the name of a process that had a connection; "" if none was seen.
func (c *Clients) command(pid uint32) string {
	for _, s := range c.conns {
		if s.pid == pid && s.command != "" {
			return s.command
		}
	}
	return ""
}

// blind lists the processes with connections that nobody sees into and that
// some budget wants, and the number of those connections.
func (c *Clients) blind(wanted func(lane string) bool) (all []Process, conns int) {
	for _, s := range c.conns {
		if !s.blind || s.lane == "" || !wanted(s.lane) {
			continue
		}
		conns++
		if !slices.ContainsFunc(all, func(p Process) bool { return p.PID == s.pid }) {
			all = append(all, Process{PID: s.pid, Command: s.command})
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return all, conns
}
