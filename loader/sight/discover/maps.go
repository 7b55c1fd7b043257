// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileID tells one file from all others: the device, in the encoding of
// unix.Mkdev, and the inode. An inode alone is one of many of its number.
type fileID struct{ dev, inode uint64 }

func (f fileID) String() string {
	return fmt.Sprintf("%d:%d:%d", unix.Major(f.dev), unix.Minor(f.dev), f.inode)
}

// mapping is a part of a file that a process has in its memory.
type mapping struct {
	start, end uint64
	exec       bool
	file       fileID
	// path is as the kernel tells it, relative to nothing that holds here: the
	// process may have another root, and a name is whatever its owner chose.
	// A newline in it is written \012, and " (deleted)" may follow it.
	path string
}

// parseMapping reads a line of /proc/PID/maps (proc(5)):
//
//	start-end perms offset major:minor inode   path
//
// Exactly one space ends each of the first five fields; more may stand before
// the path, which is all the rest of the line, spaces included.
func parseMapping(line []byte) (m mapping, ok bool) {
	var fields [5][]byte
	for i := range fields {
		field, rest, found := bytes.Cut(line, []byte{' '})
		if !found && i < len(fields)-1 {
			return m, false
		}
		fields[i], line = field, rest
	}
	start, end, found := bytes.Cut(fields[0], []byte{'-'})
	major, minor, foundDev := bytes.Cut(fields[3], []byte{':'})
	if !found || !foundDev || len(fields[1]) != 4 {
		return m, false
	}
	p := numbers{}
	m.start, m.end = p.number(start, 16, 64), p.number(end, 16, 64)
	p.number(fields[2], 16, 64)
	m.file.dev = unix.Mkdev(uint32(p.number(major, 16, 32)), uint32(p.number(minor, 16, 32)))
	m.file.inode = p.number(fields[4], 10, 64)
	m.exec = fields[1][2] == 'x'
	m.path = string(bytes.TrimLeft(line, " "))
	return m, !p.bad && m.start < m.end
}

// numbers reads numbers and remembers whether all of them were.
type numbers struct{ bad bool }

func (p *numbers) number(b []byte, base, bits int) uint64 {
	v, err := strconv.ParseUint(string(b), base, bits)
	if err != nil {
		p.bad = true
	}
	return v
}

// maxMapsLine is longer than any line: a path has less than 4096 bytes, of
// which each may take four.
const maxMapsLine = 32 << 10

// readMaps calls f with each mapping that is executable and of a file, until f
// returns false.
func readMaps(r io.Reader, f func(mapping) bool) error {
	return everyMapping(r, func(m mapping) bool { return !m.exec || m.file.inode == 0 || f(m) })
}

// everyMapping calls f with each mapping, until f returns false.
func everyMapping(r io.Reader, f func(mapping) bool) error {
	lines := bufio.NewReaderSize(r, maxMapsLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 && line[len(line)-1] == '\n' {
			line = line[:len(line)-1]
		}
		if len(line) > 0 && !errors.Is(err, bufio.ErrBufferFull) {
			m, ok := parseMapping(line)
			if !ok {
				return errors.New("line of another form")
			}
			if !f(m) {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// processMaps returns the executable files that a process maps, each mapping
// of its own. A process that is gone or has no memory of its own has none.
func processMaps(pid int) ([]mapping, error) {
	list, err := taskMaps(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil || len(list) > 0 {
		return list, err
	}
	// The first thread may have ended before the others: it shows no memory.
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		if task.Name() == strconv.Itoa(pid) {
			continue
		}
		if list, err := taskMaps(fmt.Sprintf("/proc/%d/task/%s/maps", pid, task.Name())); err == nil && len(list) > 0 {
			return list, nil
		}
	}
	return nil, nil
}

func taskMaps(path string) (list []mapping, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	err = readMaps(f, func(m mapping) bool {
		list = append(list, m)
		return true
	})
	if errors.Is(err, unix.ESRCH) {
		return nil, nil // it ended between the two
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return list, nil
}

// printable makes a name safe to show: control characters, and what is no
// UTF-8, are quoted, and a very long one is cut.
func printable(path string) string {
	const most = 512
	if len(path) > most {
		path = path[:most] + "…"
	}
	var b strings.Builder
	for _, r := range path {
		if r == utf8Bad || !strconv.IsPrint(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

const utf8Bad = '\uFFFD'
