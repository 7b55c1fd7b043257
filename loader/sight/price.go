// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
)

// Price is what a probe costs on this machine: the time of one call of a probed
// function by a process that is not looked at. It is what every process pays
// that maps a probed file; one that is seen pays a few times that for a call that
// moves data.
func Price() (time.Duration, error) {
	s, err := Open(Config{})
	if err != nil {
		return 0, err
	}
	price, err := s.price()
	return price, errors.Join(err, s.Close())
}

func (s *Sight) price() (time.Duration, error) {
	offset, err := fileOffset(reflect.ValueOf(toll).Pointer())
	if err != nil {
		return 0, err
	}
	exe, err := link.OpenExecutable("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("open own binary: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	bare := pass()
	a := &attachment{sight: s}
	if err := a.add(exe, hookEnter, []place{{offset: offset}}); err != nil {
		return 0, fmt.Errorf("probe own function: %w", err)
	}
	probed := pass()
	if err := a.Close(); err != nil {
		return 0, fmt.Errorf("take the probe off: %w", err)
	}
	return max(0, probed-bare), nil
}

// toll is the function that is probed.
//
//go:noinline
func toll(n int) int { return n + 1 }

// pass is the time of a call of toll: the median of a few rounds.
func pass() time.Duration {
	const rounds, calls = 5, 1000
	var times []time.Duration
	n := 0
	for range rounds {
		begun := time.Now()
		for range calls {
			n = toll(n)
		}
		times = append(times, time.Since(begun)/calls)
	}
	slices.Sort(times)
	return times[rounds/2]
}

// fileOffset is where in the own binary an instruction lies.
func fileOffset(pc uintptr) (uint64, error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, fmt.Errorf("find own function: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var start, end, offset uint64
		var perms string
		if _, err := fmt.Sscanf(line, "%x-%x %s %x", &start, &end, &perms, &offset); err != nil {
			continue
		}
		if uint64(pc) >= start && uint64(pc) < end {
			return uint64(pc) - start + offset, nil
		}
	}
	return 0, errors.New("own function is mapped nowhere")
}
