// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/demo"
)

// children are the processes that this one has started and that still run.
func children(t *testing.T) []string {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if errors.Is(err, os.ErrNotExist) {
			continue // a thread that has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, strings.Fields(string(text))...)
	}
	return pids
}

// TestInterruptedDemo holds that an interrupted demo leaves no process.
func TestInterruptedDemo(t *testing.T) {
	before := len(children(t))
	ctx, cancel := context.WithCancel(t.Context())
	d := &demo.Demo{
		Self: "/proc/self/exe",
		Guard: func(context.Context, string) (demo.Guard, error) {
			return nil, errors.New("the demo went on after its interruption")
		},
		Stderr: io.Discard,
		Progress: func(string) {
			time.AfterFunc(500*time.Millisecond, cancel)
		},
	}
	if _, err := d.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if got := children(t); len(got) != before {
		t.Errorf("got processes %v after the demo, want %d as before", got, before)
	}
}
