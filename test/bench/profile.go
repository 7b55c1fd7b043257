// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// profile records where egressd spends its time, kernel included, under each
// scenario, with perf: most of a proxy's work is system calls, which pprof
// shows as one line. It leaves SCENARIO.data and SCENARIO.txt in dir.
func profile(ctx context.Context, subjects []*subject, dir string, slot time.Duration) error {
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == nameEgressd })
	if i < 0 {
		return errors.New("profile: egressd is not running")
	}
	s := subjects[i]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of profiles: %w", err)
	}
	for n, sc := range scenarios {
		data := filepath.Join(dir, fmt.Sprintf("load%d.data", n+1))
		recorded := make(chan error, 1)
		go func() {
			_, err := output(ctx, nil, nil, "perf", "record", "--freq", "999", "--call-graph", "fp", "--output", data,
				"--pid", strconv.Itoa(s.proc.cmd.Process.Pid), "--", "sleep", fmt.Sprintf("%.0f", slot.Seconds()))
			recorded <- err
		}()
		_, loadErr := s.load(ctx, sc, slot)
		if err := errors.Join(<-recorded, loadErr); err != nil {
			return fmt.Errorf("profile of %s: %w", sc.title, err)
		}
		// First the kernel's and egressd's shares, then the functions.
		var text []byte
		for _, by := range []string{"dso", "dso,symbol"} {
			part, err := output(ctx, nil, nil, "perf", "report", "--stdio", "--no-children", "--call-graph", "none", "--percent-limit", "0.5", "--sort", by, "--input", data)
			if err != nil {
				return err
			}
			text = append(text, part...)
		}
		file := filepath.Join(dir, fmt.Sprintf("load%d.txt", n+1))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return fmt.Errorf("writing the profile: %w", err)
		}
		log.Printf("profile of %s: %s", sc.title, file)
	}
	return nil
}
