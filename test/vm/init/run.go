// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/test/vm/frame"
)

// environment that every run has.
var environment = []string{
	"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root",
	"TMPDIR=/tmp",
	"LANG=C.UTF-8",
	"GOTRACEBACK=all",
	"EGRESSD_VM=1",
}

const (
	chunk = 4096            // most that one frame of output holds
	grace = 2 * time.Second // for output to end after its program did
)

// run runs one program to its end and tells what it prints. No process is left
// afterwards; one that had to be killed for it is a fault.
func (t *teller) run(r frame.Run) {
	t.send(frame.Frame{Kind: frame.Begin, Run: r.Name})
	begin := time.Now()
	code, err := t.exec(r)
	if err != nil {
		t.fault(r.Name, err.Error())
		code = max(code, 1)
	}
	if left := killAll(); len(left) > 0 {
		t.fault(r.Name, "left processes behind: "+strings.Join(left, ", "))
	}
	t.send(frame.Frame{Kind: frame.End, Run: r.Name, Code: code, Elapsed: time.Since(begin)})
}

// exec runs the program and returns its status.
func (t *teller) exec(r frame.Run) (code int, err error) {
	in, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, into, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer out.Close()
	// Not os/exec: process 1 has to wait for everyone's children, and must
	// not take those of its own library's Wait.
	pid, err := syscall.ForkExec(r.Path, append([]string{r.Path}, r.Args...), &syscall.ProcAttr{
		Dir:   r.Dir,
		Env:   append(environment, r.Env...),
		Files: []uintptr{in.Fd(), into.Fd(), into.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	into.Close()
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", r.Path, err)
	}
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		t.pass(r.Name, out)
	}()
	timer := time.AfterFunc(r.Timeout, func() {
		t.fault(r.Name, fmt.Sprintf("not done after %v: killed", r.Timeout))
		killEveryone()
	})
	defer timer.Stop()
	status, err := reap(pid)
	if err != nil {
		return 0, err
	}
	// A process that outlives the program may hold its output.
	select {
	case <-printed:
	case <-time.After(grace):
		killEveryone()
		t.fault(r.Name, "something held its output after its end: killed")
		<-printed
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// pass sends what comes from in, to its end. Frames hold whole characters, as
// far as what comes is made of any.
func (t *teller) pass(name string, in io.Reader) {
	buf := make([]byte, chunk)
	kept := 0
	for {
		n, err := in.Read(buf[kept:])
		n += kept
		kept = 0
		if err == nil {
			kept = torn(buf[:n])
		}
		if n > kept {
			t.send(frame.Frame{Kind: frame.Output, Run: name, Text: string(buf[:n-kept])})
			copy(buf, buf[n-kept:n])
		}
		if err != nil {
			return
		}
	}
}

// torn is the length of a character's first bytes at the end of text, the rest
// of which is still to come.
func torn(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if utf8.RuneStart(text[len(text)-n]) {
			if utf8.FullRune(text[len(text)-n:]) {
				return 0
			}
			return n
		}
	}
	return 0
}

// reap waits for pid, and for whatever else dies until then: who has lost its
// parent is a child of process 1.
func reap(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, fmt.Errorf("wait for %d: %w", pid, err)
		case got == pid:
			return status, nil
		}
	}
}

// killEveryone kills every process but this one. Whoever is not process 1 has no
// machine of its own to do that to.
func killEveryone() {
	if os.Getpid() != 1 {
		panic("not process 1")
	}
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && err != unix.ESRCH {
		fmt.Fprintln(os.Stderr, "init: kill:", err)
	}
}

// killAll ends every process but this one and names them.
func killAll() (names []string) {
	for {
		left := others()
		if len(left) == 0 {
			return names
		}
		if names == nil {
			names = left
		}
		killEveryone()
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == syscall.EINTR || err == nil && pid > 0 {
				continue
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// others lists the processes that run, kernel threads left out.
func others() (names []string) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		panic(err)
	}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		text, err := os.ReadFile(dir + "/stat")
		if pid == 1 || err != nil { // an error: it has just gone
			continue
		}
		// pid (name) state ppid pgrp session tty tpgid flags
		_, rest, _ := strings.Cut(string(text), "(")
		name, rest := cutLast(rest, ") ")
		fields := strings.Fields(rest)
		if len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		const kthread = 0x00200000 // PF_KTHREAD, include/linux/sched.h
		if flags, err := strconv.ParseUint(fields[6], 10, 64); err == nil && flags&kthread != 0 {
			continue
		}
		names = append(names, fmt.Sprintf("%d (%s)", pid, name))
	}
	return names
}

// cutLast cuts text at the last sep: the name of a program may hold anything.
func cutLast(text, sep string) (before, after string) {
	if i := strings.LastIndex(text, sep); i >= 0 {
		return text[:i], text[i+len(sep):]
	}
	return text, ""
}
