// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of a Client whose daemon cannot be asked.
var (
	ErrNotRunning = errors.New("no egressd is running")
	ErrNotAllowed = errors.New("only root and the daemon's own user may ask it")
)

// Client asks a daemon. It is safe for concurrent use.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client of the daemon at socket. It connects when asked.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Status asks how the daemon fares.
func (c *Client) Status(ctx context.Context) (Status, error) { return get[Status](ctx, c, "status") }

// Lanes asks for all lanes.
func (c *Client) Lanes(ctx context.Context) ([]Lane, error) { return get[[]Lane](ctx, c, "lanes") }

// Flows asks for all connections.
func (c *Client) Flows(ctx context.Context) ([]Flow, error) { return get[[]Flow](ctx, c, "flows") }

// Exits asks for all exits: see Backend.
func (c *Client) Exits(ctx context.Context, since time.Duration) (Exits, error) {
	path := "exits"
	if since != 0 {
		path += "?since=" + url.QueryEscape(since.String())
	}
	return get[Exits](ctx, c, path)
}

// Counts asks what else was counted.
func (c *Client) Counts(ctx context.Context) (Counts, error) { return get[Counts](ctx, c, "counts") }

// Explain asks what would become of a request.
func (c *Client) Explain(ctx context.Context, q Question) (Explanation, error) {
	query := url.Values{"url": {q.URL}, "method": {q.Method}, "exit": {q.Exit}}
	return get[Explanation](ctx, c, "explain?"+query.Encode())
}

// Events calls f for each event; see Backend. A stream that the daemon's end
// cuts off ends without an error.
func (c *Client) Events(ctx context.Context, follow, dispatches bool, f func(Event) error) error {
	path := "events?"
	if follow {
		path += "follow&"
	}
	if dispatches {
		path += "dispatches"
	}
	res, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for dec := json.NewDecoder(res.Body); ; {
		var e Event
		switch err := dec.Decode(&e); {
		case errors.Is(err, io.EOF), err != nil && follow:
			return nil
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// Cooldown closes a lane for d, or opens it if d is zero.
func (c *Client) Cooldown(ctx context.Context, lane string, d time.Duration) error {
	body := Cooldown{Lane: lane, Clear: d == 0}
	if d != 0 {
		body.Duration = d.String()
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	res, err := c.do(ctx, http.MethodPost, "cooldown", text)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func get[T any](ctx context.Context, c *Client, path string) (v T, err error) {
	res, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return v, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("read answer of the daemon: %w", err)
	}
	return v, nil
}

// do makes a request; an answer that is an error becomes one. The caller
// closes the body.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://egressd/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	res, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w on %s", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w on %s", ErrNotAllowed, c.socket)
	case err != nil:
		return nil, fmt.Errorf("ask the daemon on %s: %w", c.socket, err)
	case res.StatusCode == http.StatusOK:
		return res, nil
	}
	defer res.Body.Close()
	var f failure
	if err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&f); err != nil || f.Error == "" {
		return nil, fmt.Errorf("ask the daemon on %s: it answers %s", c.socket, res.Status)
	}
	if res.StatusCode == http.StatusForbidden {
		return nil, fmt.Errorf("%w: %s", ErrNotAllowed, f.Error)
	}
	return nil, errors.New(f.Error)
}
