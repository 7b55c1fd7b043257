// SPDX-License-Identifier: Apache-2.0

// Command init is process 1 of a test machine. It sets the machine up, runs
// what its plan says, one after the other, tells the host of it in frames, and
// powers off. It is useful nowhere else, and refuses to be anything but process 1.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/test/vm/frame"
)

// framePort is the second serial port. The kernel's console is the first.
const framePort = "/dev/ttyS1"

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: not process 1")
		os.Exit(2)
	}
	defer powerOff()
	if err := mountAll(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
		return
	}
	port, err := openPort(framePort)
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
		return
	}
	host := &teller{frame.NewWriter(port)}
	if err := work(host); err != nil {
		host.fault("", err.Error())
	}
	host.send(frame.Frame{Kind: frame.Done})
	// What was written must have left the port before the machine goes.
	if err := unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1); err != nil {
		fmt.Fprintln(os.Stderr, "init: drain", framePort, err)
	}
}

// work does all that the plan says. The error is of what keeps it from it.
func work(host *teller) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	host.send(frame.Frame{Kind: frame.Boot, Text: unix.ByteSliceToString(uts.Release[:])})
	text, err := os.ReadFile(frame.PlanPath)
	if err != nil {
		return err
	}
	var plan frame.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("read %s: %w", frame.PlanPath, err)
	}
	for _, path := range plan.Modules {
		if err := loadModule(path); err != nil {
			return err
		}
	}
	if err := setUp(); err != nil {
		return err
	}
	for _, run := range plan.Runs {
		host.run(run)
	}
	return nil
}

// teller sends frames to the host.
type teller struct{ out *frame.Writer }

func (t *teller) send(f frame.Frame) {
	if err := t.out.Send(f); err != nil {
		fmt.Fprintln(os.Stderr, "init: send frame:", err)
	}
}

func (t *teller) fault(run, text string) {
	t.send(frame.Frame{Kind: frame.Fault, Run: run, Text: text})
}

func powerOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "init: power off:", err)
	}
	select {} // not to be left: the end of process 1 is a panic of the kernel
}
