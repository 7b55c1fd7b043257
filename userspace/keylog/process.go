// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	maxEnviron = 1 << 20  // bytes read of an environment
	maxCmdline = 64 << 10 // bytes read of a command line
	maxStat    = 4 << 10  // bytes read of /proc/PID/stat

	cacheRoom = 4096 // processes
	// cacheFor bounds what exec can make stale, which changes the command line
	// of a process and not when it started.
	cacheFor = 30 * time.Second
)

// Processes remembers what processes were told about their keys. The zero
// value is ready. It is safe for concurrent use.
type Processes struct {
	mu    sync.Mutex
	known map[process]answer
}

// process is one that had a process id; the id may be another's later.
type process struct {
	pid   int
	start string // in ticks since the host started
}

type answer struct {
	path  string
	until time.Time
}

// host is the memory behind Logs.
var host Processes

// Logs returns the file that a process was told to write its keys to, or false
// if it was not, has ended or may not be looked at. The path is as the process
// sees it, whose root may be another. It reads files of /proc, at most once in
// a while for one process.
func Logs(pid int) (path string, ok bool) { return host.Logs(pid) }

// Logs is the function Logs with a memory of its own.
func (p *Processes) Logs(pid int) (path string, ok bool) {
	start, err := startTime(pid)
	if err != nil {
		return "", false
	}
	key := process{pid, start}
	now := time.Now()
	p.mu.Lock()
	a, known := p.known[key]
	p.mu.Unlock()
	if known && now.Before(a.until) {
		return found(a.path)
	}
	environ, err := readSome(fmt.Sprintf("/proc/%d/environ", pid), maxEnviron)
	if err != nil {
		return "", false
	}
	cmdline, err := readSome(fmt.Sprintf("/proc/%d/cmdline", pid), maxCmdline)
	if err != nil {
		return "", false
	}
	path, ok = Asked(environ, cmdline)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil || len(p.known) >= cacheRoom {
		p.known = make(map[process]answer)
	}
	p.known[key] = answer{path, now.Add(cacheFor)}
	return path, ok
}

// startTime is the field starttime of /proc/PID/stat.
func startTime(pid int) (string, error) {
	text, err := readSome(fmt.Sprintf("/proc/%d/stat", pid), maxStat)
	if err != nil {
		return "", err
	}
	// The name of the program is in parentheses and may hold any of them.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const starttime = 22 - 3 // counted from the third field, the first behind the name
	if len(fields) <= starttime {
		return "", fmt.Errorf("read start of process %d: no such field", pid)
	}
	return string(fields[starttime]), nil
}

// readSome reads the first bytes of a file, at most limit.
func readSome(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}
