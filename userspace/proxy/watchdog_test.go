// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"testing"
	"time"
)

func TestHungLoopIsNoticed(t *testing.T) {
	b := start(t)
	hung := make(chan int, 1)
	watcher := &Proxy{cfg: Config{Hung: func(i int) { hung <- i }}, loops: b.loops}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go watcher.watch(ctx, 150*time.Millisecond) // longer than a tick: idle loops do turn

	time.Sleep(1500 * time.Millisecond)
	select {
	case i := <-hung:
		t.Fatalf("idle loop %d was taken for hung", i)
	default:
	}
	release := make(chan struct{})
	b.loops[1].post(func() { <-release })
	if i := <-hung; i != 1 {
		t.Errorf("loop %d was taken for hung, want 1", i)
	}
	if now := b.cfg.Now(); b.LastTurn().Add(time.Second/2) > now {
		t.Errorf("last turn at %d, now %d; want it long ago", b.LastTurn(), now)
	}
	close(release)
	waitFor(t, "all loops turn again", func() bool { return b.LastTurn().Add(time.Second/2) > b.cfg.Now() })
}
