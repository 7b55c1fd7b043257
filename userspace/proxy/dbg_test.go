package proxy
import ("fmt";"time";"os";"runtime/pprof")
func (b *bench) dbg() {
	go func(){ time.Sleep(8*time.Second)
	b.each(func(c *conn){ fmt.Printf("STUCK rq=%d rs=%d up.fd=%d connected=%v opaque=%v cl pend=%d ok=%d eof=%v r=%v up pend=%d ok=%d eof=%v r=%v via: %+v\n", c.rq, c.rs, c.up.fd, c.connected, c.opaque, c.client.pending(), c.client.ok, c.client.eof, c.client.readable, c.up.pending(), c.up.ok, c.up.eof, c.up.readable, *c.via) })
	pprof.Lookup("goroutine").WriteTo(os.Stdout, 1)
	}()
}
