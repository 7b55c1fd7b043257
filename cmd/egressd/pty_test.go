// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pty is a terminal of the test, with a program in it.
type pty struct {
	t     *testing.T
	ptmx  *os.File // the side of whoever looks and types
	tty   *os.File // the side of the program
	cmd   *exec.Cmd
	ended chan error

	mu  sync.Mutex
	out bytes.Buffer // all that was written to the screen
}

// newPTY makes a terminal of that size.
func newPTY(t *testing.T, width, height int) *pty {
	t.Helper()
	p := &pty{t: t, ended: make(chan error, 1)}
	var err error
	if p.ptmx, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	raw, err := p.ptmx.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if ctl := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); ctl != nil || err != nil {
		t.Fatal(ctl, err)
	}
	if p.tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	p.resize(width, height)
	read := make(chan struct{})
	go func() {
		defer close(read)
		text := make([]byte, 4096)
		for {
			n, err := p.ptmx.Read(text)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.out.Write(text[:n])
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		if p.cmd != nil {
			_ = p.cmd.Process.Kill() // it has ended, mostly
			<-p.ended
		}
		p.tty.Close()
		p.ptmx.Close()
		<-read
	})
	return p
}

func (p *pty) resize(width, height int) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(width), Row: uint16(height)}); err != nil {
		p.t.Fatal(err)
	}
}

// start runs a program whose controlling terminal this is, in a session of its
// own.
func (p *pty) start(args ...string) {
	p.t.Helper()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.tty, p.tty, p.tty
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended := p.ended
	go func() {
		err := p.cmd.Wait()
		ended <- err
		close(ended)
	}()
}

// mode is the mode of the terminal.
func (p *pty) mode() unix.Termios {
	p.t.Helper()
	mode, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *mode
}

func (p *pty) send(keys string) {
	p.t.Helper()
	if _, err := p.ptmx.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pty) written() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// screen is the last frame that is complete, without sequences.
func (p *pty) screen() string {
	text := p.written()
	end := strings.LastIndex(text, "\x1b[J")
	if end < 0 {
		return ""
	}
	text = text[:end]
	return unsequenced(text[strings.LastIndex(text, "\x1b[H")+len("\x1b[H"):])
}

// unsequenced is what a terminal would show of a text that moves no cursor.
func unsequenced(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\x1b' && i+1 < len(text) && text[i+1] == '[' {
			for i += 2; i < len(text) && (text[i] < '@' || text[i] > '~'); i++ {
			}
			continue
		}
		if text[i] != '\r' {
			out.WriteByte(text[i])
		}
	}
	return out.String()
}

// waitScreen waits for a frame that satisfies.
func (p *pty) waitScreen(what string, good func(screen string) bool) string {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		screen := p.screen()
		switch {
		case good(screen):
			return screen
		case time.Now().After(end):
			p.t.Fatalf("no frame with %s; the last one:\n%s\nall: %q", what, screen, p.written())
		}
	}
}

func (p *pty) waitFor(text string) string {
	p.t.Helper()
	return p.waitScreen(text, func(screen string) bool { return strings.Contains(screen, text) })
}

// wait waits for the end of the program.
func (p *pty) wait() error {
	p.t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(20 * time.Second):
		p.t.Fatalf("%v did not end; its screen:\n%s", p.cmd.Args, p.screen())
		return nil
	}
}
