// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// pythonWorker is the loop that everybody has written once: one request, one
// second of sleep, in each of several processes that do not know each other.
const pythonWorker = `
import http.client, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        c = http.client.HTTPConnection(host, port)
        c.request("GET", "/item")
        c.getresponse().read()
        c.close()
    except OSError:
        pass
    time.sleep(1)
`

// Clients are naive clients in one process.
type Clients struct {
	URL   string
	Count int           // loops at the same time
	Pause time.Duration // between the end of one request and the next
	For   time.Duration // how long
	// Heed sleeps for the Retry-After of a 429, and not a moment longer, as most
	// clients do that heed it at all.
	Heed bool
}

// Run requests in loops, each request on a connection of its own and, but for
// Heed, none the wiser for the answer before.
func (c Clients) Run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.For)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var wg sync.WaitGroup
	for range c.Count {
		wg.Go(func() {
			for ctx.Err() == nil {
				pause := c.Pause
				asked, answered := get(ctx, client, c.URL)
				switch {
				case !answered:
					pause = max(pause, 50*time.Millisecond) // do not spin on a dead origin
				case c.Heed && asked > 0:
					pause = asked
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	wg.Wait()
}

// get makes one request and reports whether there was an answer, and the delay
// that a 429 asked for.
func get(ctx context.Context, client *http.Client, url string) (asked time.Duration, answered bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, false
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, false
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusTooManyRequests {
		if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
			asked = time.Duration(n) * time.Second
		}
	}
	_, err = io.Copy(io.Discard, res.Body)
	return asked, err == nil
}
