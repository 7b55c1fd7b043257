// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Look says how things are in the network namespace of a file, as
// /proc/PID/ns/net, or of the calling thread if it is "". It changes nothing.
// Whose program is attached it sees by its name alone, and not at all without
// privileges.
func Look(netns string) (State, error) {
	var state State
	err := within(netns, func(s *surveyor) error {
		found, _, err := s.look(true)
		if err != nil {
			return err
		}
		k := hooks{h: s.h}
		at := make(map[int]attachment)
		for index, d := range found.links {
			if d.holds() && !d.loopback {
				at[index] = k.present(d)
			}
		}
		state = found.judge(at, nil)
		return nil
	})
	return state, err
}

// Clean removes what a process left behind that was killed: filters, and qdiscs
// that it installed. No Pacer may be open in the namespace, which is named as
// for Look.
func Clean(netns string) error {
	return within(netns, func(s *surveyor) error {
		found, _, err := s.look(false)
		if err != nil {
			return err
		}
		w := worker{s: s, hooks: hooks{h: s.h}}
		i := installer{h: s.h, log: slog.New(slog.DiscardHandler), tried: make(map[int]time.Time), failed: make(map[int]error)}
		_, err = i.restore(found)
		return errors.Join(w.cleanUp(found), err)
	})
}

// within calls f with a surveyor of a namespace, in a thread that is there.
func within(netns string, f func(*surveyor) error) error {
	if netns == "" {
		netns = "/proc/thread-self/ns/net"
	}
	ns, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	result := make(chan error)
	go func() {
		result <- func() error {
			leave, err := enter(ns)
			if err != nil {
				return err
			}
			defer leave()
			s, err := newSurveyor()
			if err != nil {
				return err
			}
			defer s.close()
			return f(s)
		}()
	}()
	return errors.Join(<-result, ns.Close())
}
