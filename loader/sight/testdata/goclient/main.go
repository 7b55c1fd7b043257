// SPDX-License-Identifier: Apache-2.0

// Requests of Go: goclient h1|h2|late PORT CONNECTIONS REQUESTS
//
// With late it speaks HTTP/2, says "ready" after the first request on each
// connection, waits for a line and goes on.
package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
)

func main() {
	number := func(i int) int {
		n, err := strconv.Atoi(os.Args[i])
		if err != nil {
			log.Fatal(err)
		}
		return n
	}
	port, connections, requests := number(2), number(3), number(4)
	late := os.Args[1] == "late"
	var all, first sync.WaitGroup
	first.Add(connections)
	goOn := make(chan struct{})
	for i := range connections {
		all.Go(func() {
			t := &http.Transport{
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
				ForceAttemptHTTP2: late || os.Args[1] == "h2",
			}
			defer t.CloseIdleConnections()
			client := http.Client{Transport: t}
			for j := range requests {
				if got := deep(64+j%64, &client, fmt.Sprintf("https://127.0.0.1:%d/%d/%d", port, i, j)); got != 429 {
					log.Fatalf("status %d", got)
				}
				if late && j == 0 {
					first.Done()
					<-goOn
				}
			}
		})
	}
	if late {
		first.Wait()
		fmt.Println("ready")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			log.Fatal(err)
		}
		close(goOn)
	}
	all.Wait()
}

// deep makes a request from deep in the stack, so that the stack grows, and
// moves, at one place or another of the way down.
func deep(levels int, c *http.Client, url string) int {
	var room [200]byte
	if levels > 0 {
		room[levels%len(room)] = 1
		return deep(levels-1, c, url) + int(room[(levels+1)%len(room)])
	}
	r, err := c.Get(url)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		log.Fatal(err)
	}
	return r.StatusCode
}
