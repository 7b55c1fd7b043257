// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// again is after how many milliseconds a browser asks anew when a stream ends.
const again = 1000

// stream sends a State each second, as server-sent events:
//
//	id: EPOCH-SEQ
//	event: state
//	data: {…}
//
// and, as an event skipped, how many a reader has missed in all, when it missed
// some. A reader for whom one State does not go out in time is cut off.
func (p *Page) stream(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	me := p.watch()
	if me == nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d pages are being watched already, or the daemon ends", maxWatchers), http.StatusServiceUnavailable)
		return
	}
	defer p.unwatch(me)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would collect what is sent
	out := streamWriter{w: w, control: http.NewResponseController(w), patience: p.patience}
	// The connection may be used again, by who has no deadline.
	defer func() { _ = out.control.SetWriteDeadline(time.Time{}) }()
	out.buf = append(out.buf, "retry: "+strconv.Itoa(again)+"\n"...)
	if out.send(p, p.see(fresh), q) != nil {
		return
	}
	var skipped uint64
	for {
		select {
		case <-r.Context().Done():
			return
		case s, open := <-me.sights:
			if !open {
				return
			}
			if n := p.skippedBy(me); n > skipped {
				skipped = n
				out.buf = append(out.buf, "event: skipped\ndata: "+strconv.FormatUint(n, 10)+"\n\n"...)
			}
			if out.send(p, s, q) != nil {
				return
			}
		}
	}
}

// streamWriter writes events. Errors are those of the reader's connection, and
// end it.
type streamWriter struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	buf      []byte // what goes out with the next event
}

func (o *streamWriter) send(p *Page, s *sight, q query) error {
	o.buf = append(o.buf, "id: "+p.epoch+"-"+strconv.FormatUint(s.seq, 10)+"\nevent: state\ndata: "...)
	o.buf = append(o.buf, p.write(s, q)...)
	o.buf = append(o.buf, "\n\n"...)
	if err := o.control.SetWriteDeadline(time.Now().Add(o.patience)); err != nil {
		return err
	}
	_, err := o.w.Write(o.buf)
	o.buf = o.buf[:0]
	if err != nil {
		return err
	}
	return o.control.Flush()
}
