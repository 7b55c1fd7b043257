// SPDX-License-Identifier: Apache-2.0

// Requests of Go: goclient h1|h2|late|raw PORT CONNECTIONS REQUESTS
//
// With late it speaks HTTP/2, says "ready" after the first request on each
// connection, waits for a line and goes on. With raw it calls crypto/tls itself,
// each time from a stack of its own.
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
	"strings"
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
	if os.Args[1] == "raw" {
		for i := range connections {
			raw(port, i, requests)
		}
		return
	}
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
				if got := ask(&client, fmt.Sprintf("https://127.0.0.1:%d/%d/%d", port, i, j)); got != 429 {
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

// raw asks on one connection, with each call in a new goroutine and one level
// deeper than the one before: somewhere the stack has to grow, and to move, at
// the very beginning of Read and of Write, which then begin again.
func raw(port, i, requests int) {
	c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 4096)
	for j := range requests {
		request := fmt.Sprintf("GET /%d/%d HTTP/1.1\r\nHost: x\r\n\r\n", i, j)
		inNewStack(j, func() { io.WriteString(c, request) })
		for got := ""; !strings.HasSuffix(got, "slow down\n"); {
			inNewStack(j, func() {
				n, err := c.Read(buf)
				if err != nil {
					log.Fatal(err)
				}
				got += string(buf[:n])
			})
		}
	}
}

func inNewStack(levels int, f func()) {
	done := make(chan struct{})
	go func() {
		deep(levels, f)
		close(done)
	}()
	<-done
}

// deep calls f from deep in the stack. What it returns only keeps its room.
func deep(levels int, f func()) byte {
	var room [48]byte
	if levels > 0 {
		room[levels%len(room)] = 1
		return deep(levels-1, f) + room[(levels+1)%len(room)]
	}
	f()
	return 0
}

// ask makes a request.
func ask(c *http.Client, url string) int {
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
