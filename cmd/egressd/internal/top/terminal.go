// SPDX-License-Identifier: Apache-2.0

package top

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of the process. A file of its own, so
// that a read of it can be ended and the mode of nobody else's file changes.
type terminal struct {
	file   *os.File
	before *unix.Termios // as it was found; nil while it is not ours
}

// ErrNoTerminal says that there is no terminal to show anything in.
var ErrNoTerminal = errors.New("there is no terminal")

func openTerminal() (*terminal, error) {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoTerminal, err)
	}
	return &terminal{file: file}, nil
}

// Sequences of xterm and whatever calls itself like it: the alternate screen
// (1049) keeps what stood there before, the cursor (25) would flicker.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[2J"
	leaveScreen = "\x1b[0m\x1b[?25h\x1b[?1049l"
)

// enter takes the terminal: keys come at once and unseen. Those that make
// signals go on making them.
func (t *terminal) enter() error {
	now, err := t.mode()
	if err != nil {
		return err
	}
	before := *now
	now.Lflag &^= unix.ECHO | unix.ICANON
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if err := t.setMode(now); err != nil {
		return err
	}
	t.before = &before
	return t.write(enterScreen)
}

// leave gives the terminal back as it was. It may be called more than once.
func (t *terminal) leave() error {
	if t.before == nil {
		return nil
	}
	before := t.before
	t.before = nil
	return errors.Join(t.write(leaveScreen), t.setMode(before))
}

// control calls f with the descriptor. Taking it by Fd would make reads block
// for good.
func (t *terminal) control(f func(fd int) error) error {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("control terminal: %w", err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return fmt.Errorf("control terminal: %w", err)
	}
	return failed
}

func (t *terminal) mode() (mode *unix.Termios, err error) {
	err = t.control(func(fd int) (err error) {
		if mode, err = unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			return fmt.Errorf("read mode of terminal: %w", err)
		}
		return nil
	})
	return mode, err
}

func (t *terminal) setMode(mode *unix.Termios) error {
	return t.control(func(fd int) error {
		if err := unix.IoctlSetTermios(fd, unix.TCSETSF, mode); err != nil {
			return fmt.Errorf("set mode of terminal: %w", err)
		}
		return nil
	})
}

// size is the number of columns and lines; that of a VT100 where the terminal
// does not tell.
func (t *terminal) size() (width, height int) {
	width, height = 80, 24
	_ = t.control(func(fd int) error {
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil && size.Col > 0 && size.Row > 0 {
			width, height = int(size.Col), int(size.Row)
		}
		return nil
	})
	return width, height
}

func (t *terminal) write(text string) error {
	if _, err := t.file.WriteString(text); err != nil {
		return fmt.Errorf("write to terminal: %w", err)
	}
	return nil
}

// draw writes a frame over the one before. Each line is erased from its end
// on, and nothing is erased that is written again: so nothing flickers.
func (t *terminal) draw(lines []line, colour bool) error {
	var out strings.Builder
	out.WriteString("\x1b[H")
	for i, l := range lines {
		if i > 0 {
			out.WriteString("\r\n")
		}
		sequence := ""
		if colour {
			sequence = sequences[l.style]
		}
		out.WriteString(sequence)
		out.WriteString(l.text)
		if sequence != "" {
			out.WriteString("\x1b[0m")
		}
		out.WriteString("\x1b[K")
	}
	out.WriteString("\x1b[J")
	return t.write(out.String())
}
