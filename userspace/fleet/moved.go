// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// whereabouts is which server connections lead to, and tells when it is another
// one. The client library closes the connections of calls to a master that was
// replaced, but a subscription stays with it as long as it lives, though nobody
// publishes there any more. It is a hook of the client's dialing.
type whereabouts struct {
	mu    sync.Mutex
	addr  string
	moved chan struct{} // closed with the next change
}

var _ redis.Hook = (*whereabouts)(nil)

// next is closed when connections begin to lead elsewhere.
func (w *whereabouts) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moved == nil {
		w.moved = make(chan struct{})
	}
	return w.moved
}

func (w *whereabouts) see(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.addr != "" && w.addr != addr && w.moved != nil {
		close(w.moved)
		w.moved = nil
	}
	w.addr = addr
}

// DialHook implements redis.Hook.
func (w *whereabouts) DialHook(dial redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			w.see(conn.RemoteAddr().String())
		}
		return conn, err
	}
}

// ProcessHook implements redis.Hook.
func (*whereabouts) ProcessHook(process redis.ProcessHook) redis.ProcessHook { return process }

// ProcessPipelineHook implements redis.Hook.
func (*whereabouts) ProcessPipelineHook(process redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return process
}
