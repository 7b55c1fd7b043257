// SPDX-License-Identifier: Apache-2.0

// Command goclient is the client of package net/http: URL COUNT WIDTH PROTOCOL,
// and output as that of the clients in Python. Go programs log no keys by
// themselves; this one does, to SSLKEYLOGFILE.
package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "goclient:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("want URL COUNT WIDTH PROTOCOL")
	}
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	width, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.MaxConnsPerHost, tr.MaxIdleConnsPerHost = width, width
	tr.TLSClientConfig = new(tls.Config)
	if args[3] == "h1" {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetHTTP1(true)
	}
	if name := os.Getenv("SSLKEYLOGFILE"); name != "" {
		keys, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer keys.Close()
		tr.TLSClientConfig.KeyLogWriter = keys
	}
	client := &http.Client{Transport: tr, Timeout: 60 * time.Second}
	next := make(chan int)
	var group errgroup.Group
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	for range width {
		group.Go(func() (err error) {
			for i := range next {
				if err != nil {
					continue // who hands out numbers must not wait for ever
				}
				err = get(client, args[0], i, func(told map[string]any) error {
					mu.Lock()
					defer mu.Unlock()
					return out.Encode(told)
				})
			}
			return err
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	return group.Wait()
}

func get(client *http.Client, base string, i int, tell func(map[string]any) error) error {
	resp, err := client.Get(fmt.Sprintf("%s/%d", base, i))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if err != nil {
		return err
	}
	return tell(map[string]any{"i": i, "status": resp.StatusCode, "retry_after": resp.Header.Get("Retry-After")})
}
