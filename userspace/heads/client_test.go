// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"errors"
	"strings"
	"testing"

	"github.com/egressd/egressd/userspace/h2"
)

func TestClientOfHTTP1(t *testing.T) {
	for _, tt := range []struct {
		name, stream string
		want         []string
		err          error
	}{
		{"nothing", "", nil, nil},
		{
			"two in a row", "GET /a?q=1 HTTP/1.1\r\nHost: x:8080\r\nAccept: */*\r\n\r\nHEAD http://y/ HTTP/1.1\r\nHost: z\r\n\r\n",
			[]string{
				"begin 0", "request 0 GET host=x:8080 path=/a scheme= end {Host=x:8080 Accept=*/*}",
				"begin 0", "request 0 HEAD host=y path=/ scheme=http kind=1 end {Host=z}",
			},
			nil,
		},
		{
			"bodies", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloPUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nIdempotency-Key: 7\r\n\r\n" +
				"a\r\n0123456789\r\n0\r\nX: y\r\n\r\n\r\n\r\nGET /after HTTP/1.1\r\nHost: x\r\nIdempotency-Key:\r\n\r\n",
			[]string{
				"begin 0", "request 0 POST host=x path=/ scheme= {Host=x Content-Length=5}", "end 0",
				"begin 0", "request 0 PUT host=x path=/ scheme= key {Host=x Transfer-Encoding=chunked Idempotency-Key=7}", "end 0",
				"begin 0", "request 0 GET host=x path=/after scheme= end {Host=x Idempotency-Key=}",
			},
			nil,
		},
		{
			"begins like the preface", "PRI * HTTP/1.1\r\n\r\n",
			[]string{"begin 0"}, ErrDoubt,
		},
		{"the preface but for its last byte", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r!", []string{"begin 0"}, ErrDoubt},
		{
			"a method like the preface's", "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
			[]string{"begin 0", "request 0 POST host=x path=/ scheme= end {Host=x}"}, nil,
		},
		{
			"connect", "CONNECT h:443 HTTP/1.1\r\n\r\n",
			[]string{"begin 0", "request 0 CONNECT host=h:443 path= scheme= kind=2 end {}"}, nil,
		},
		{
			"upgrade", "GET /s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
			[]string{"begin 0", "request 0 GET host=x path=/s scheme= protocol=websocket kind=4 end {Host=x Upgrade=websocket Connection=Upgrade}"}, nil,
		},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", []string{"begin 0", "request 0 OPTIONS host=x path= scheme= end {Host=x}"}, nil},
		{"half a head", "GET / HTTP/1.1\r\nHost", []string{"begin 0"}, nil},
		{"a line end after a start of the preface", "P\r\nOST / HTTP/1.1\r\nHost: x\r\n\r\n", []string{"begin 0"}, ErrDoubt},
		{"empty lines", "\r\n\r\n\r\n\r\n", nil, nil},
		{"empty lines without end", "\r\n\r\n\r\n\r\n\r\n", nil, errLeading},
		{"two framings", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", []string{"begin 0"}, ErrDoubt},
		{"not http", "\x16\x03\x01\x02\x00\x01\x00\n", []string{"begin 0"}, ErrDoubt},
		{"bad chunk", "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", []string{"begin 0", "request 0 PUT host=x path=/ scheme= {Host=x Transfer-Encoding=chunked}"}, ErrDoubt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check(t, newClient, []byte(tt.stream), tt.want, tt.err)
		})
	}
}

func TestClientOfHTTP2(t *testing.T) {
	get := []string{":method", "GET", ":scheme", "https", ":authority", "example.com", ":path", "/a?b=c", "user-agent", "t"}
	const got = "GET host=example.com path=/a scheme=https"
	long := newFrames(true)
	block := long.block(append(get, "cookie", strings.Repeat("0123456789", 20))...)
	pad := string([]byte{3}) + "\x80\x00\x00\x00\x10" + block[:10] + "\x00\x00\x00"
	long.raw(h2.Headers, h2.EndStream|h2.Padded|h2.PriorityFlag, 1, pad)
	long.raw(h2.Continuation, 0, 1, "").raw(h2.Continuation, 0, 1, block[10:50]).raw(h2.Continuation, h2.EndHeaders, 1, block[50:])

	for _, tt := range []struct {
		name   string
		stream []byte
		want   []string
		err    error
	}{
		{"preface only", []byte(h2.Preface), nil, nil},
		{
			"some requests", newFrames(true).raw(h2.WindowUpdate, 0, 0, "\x00\x00\xff\xff").headers(1, h2.EndStream, get...).
				raw(h2.Settings, h2.Ack, 0, "").headers(3, 0, append(get, "idempotency-key", "k")...).data(3, 0, "part").
				headers(5, h2.EndStream, get...).data(3, h2.EndStream|h2.Padded, "\x01the rest\x00").raw(99, 255, 5, "unknown").
				headers(9, h2.EndStream, ":method", "HEAD", ":scheme", "http", ":path", "/", "host", "h", "idempotency-key", "").out,
			[]string{
				"begin 1", "request 1 " + got + " end {user-agent=t}",
				"begin 3", "request 3 " + got + " key {user-agent=t idempotency-key=k}",
				"begin 5", "request 5 " + got + " end {user-agent=t}",
				"end 3",
				"begin 9", "request 9 HEAD host=h path=/ scheme=http kind=1 end {host=h idempotency-key=}",
			},
			nil,
		},
		{
			"continuation, padding and priority", long.data(3, 0, "").headers(7, h2.EndStream, get...).out,
			[]string{
				"begin 1", "request 1 " + got + " end {user-agent=t cookie=" + strings.Repeat("0123456789", 20) + "}",
				"begin 7", "request 7 " + got + " end {user-agent=t}",
			},
			nil,
		},
		{
			"trailers", newFrames(true).headers(1, 0, get...).data(1, 0, "x").headers(1, h2.EndStream, "x-sum", "1").
				headers(3, 0, get...).data(3, h2.EndStream, "").out,
			[]string{"begin 1", "request 1 " + got + " {user-agent=t}", "end 1", "begin 3", "request 3 " + got + " {user-agent=t}", "end 3"},
			nil,
		},
		{
			"given up", newFrames(true).headers(1, 0, get...).raw(h2.RSTStream, 0, 1, "\x00\x00\x00\x08").
				raw(h2.GoAway, 0, 0, "\x00\x00\x00\x04\x00\x00\x00\x02debug").out,
			[]string{"begin 1", "request 1 " + got + " {user-agent=t}", "reset 1 code 8", "goaway 4 code 2"},
			nil,
		},
		{
			"extended connect", newFrames(true).headers(1, 0, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":path", "/chat", ":authority", "a").out,
			[]string{"begin 1", "request 1 CONNECT host=a path=/chat scheme=https protocol=websocket kind=2 {}"},
			nil,
		},
		{
			"connect", newFrames(true).headers(1, 0, ":method", "CONNECT", ":authority", "a:1").out,
			[]string{"begin 1", "request 1 CONNECT host=a:1 path= scheme= kind=2 {}"},
			nil,
		},
		{
			"options", newFrames(true).headers(1, h2.EndStream, ":method", "OPTIONS", ":scheme", "http", ":path", "*").out,
			[]string{"begin 1", "request 1 OPTIONS host= path= scheme=http end {}"},
			nil,
		},
		{"no settings", append([]byte(h2.Preface), newFrames(false).headers(1, 0, get...).out[15:]...), []string{"begin 1"}, errSettings},
		{"acknowledged nothing", append([]byte(h2.Preface), newFrames(false).raw(h2.Settings, h2.Ack, 0, "").out[15:]...), nil, errSettings},
		{"even stream", newFrames(true).headers(2, 0, get...).out, nil, errStream},
		{"push of a client", newFrames(true).raw(h2.PushPromise, h2.EndHeaders, 1, "\x00\x00\x00\x02").out, nil, errStream},
		{"broken block", newFrames(true).raw(h2.Headers, h2.EndHeaders, 1, "\x80").out, []string{"begin 1"}, h2.ErrIndex},
		{"broken frame", newFrames(true).raw(h2.Ping, 0, 0, "").out, nil, h2.ErrFrameSize},
		{"long block", newFrames(true).raw(h2.Headers, h2.EndHeaders, 1, strings.Repeat("x", h2.MaxBlock+1)).out, []string{"begin 1"}, h2.ErrBlockTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if len(tt.stream) > 10000 {
				if _, err := events(newClient(), tt.stream); !errors.Is(err, tt.err) {
					t.Errorf("err = %v, want %v", err, tt.err)
				}
				return
			}
			check(t, newClient, tt.stream, tt.want, tt.err)
		})
	}
}

func TestMalformedRequests(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fields []string
		want   bool
	}{
		{"fine", []string{":method", "GET", ":scheme", "https", ":path", "/", "te", "trailers"}, false},
		{"same host twice", []string{":method", "GET", ":scheme", "https", ":authority", "A", ":path", "/", "host", "a"}, false},
		{"no pseudo field", []string{"a", "b"}, true},
		{"no method", []string{":scheme", "https", ":path", "/"}, true},
		{"no scheme", []string{":method", "GET", ":path", "/"}, true},
		{"no path", []string{":method", "GET", ":scheme", "https"}, true},
		{"empty path", []string{":method", "GET", ":scheme", "https", ":path", ""}, true},
		{"two methods", []string{":method", "GET", ":method", "GET", ":scheme", "https", ":path", "/"}, true},
		{"two empty authorities", []string{":method", "GET", ":authority", "", ":authority", "x", ":scheme", "https", ":path", "/"}, true},
		{"unknown pseudo field", []string{":method", "GET", ":scheme", "https", ":path", "/", ":x", "y"}, true},
		{"pseudo field after another", []string{":method", "GET", ":scheme", "https", "a", "b", ":path", "/"}, true},
		{"another host", []string{":method", "GET", ":scheme", "https", ":authority", "a", ":path", "/", "host", "b"}, true},
		{"two hosts", []string{":method", "GET", ":scheme", "https", ":path", "/", "host", "a", "host", "b"}, true},
		{"upper case", []string{":method", "GET", ":scheme", "https", ":path", "/", "Accept", "b"}, true},
		{"empty name", []string{":method", "GET", ":scheme", "https", ":path", "/", "", "b"}, true},
		{"connection", []string{":method", "GET", ":scheme", "https", ":path", "/", "connection", "close"}, true},
		{"te", []string{":method", "GET", ":scheme", "https", ":path", "/", "te", "gzip"}, true},
		{"connect with a path", []string{":method", "CONNECT", ":authority", "a", ":path", "/"}, true},
		{"connect without an authority", []string{":method", "CONNECT"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := events(newClient(), newFrames(true).headers(1, 0, tt.fields...).out)
			if err != nil || len(got) != 2 || strings.Contains(got[1], " malformed") != tt.want {
				t.Errorf("%q, %v; want malformed = %t", got, err, tt.want)
			}
		})
	}
}

// An empty value is a value, however it is written.
func TestEmptyAuthorityTwice(t *testing.T) {
	block := "\x82\x87\x84\x01\x80\x01\x80" // as Huffman code of no bytes
	got, err := events(newClient(), newFrames(true).raw(h2.Headers, h2.EndHeaders, 1, block).out)
	if err != nil || len(got) != 2 || !strings.Contains(got[1], " malformed") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHeadThatIsTooLong(t *testing.T) {
	c := new(Client)
	line := []byte("X: " + strings.Repeat("y", 997) + "\r\n")
	if _, err := events(c, []byte("GET / HTTP/1.1\r\nHost: x\r\n")); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for {
		_, _, err := c.Next(line)
		if sent += len(line); err != nil {
			if !errors.Is(err, ErrDoubt) {
				t.Errorf("err = %v", err)
			}
			break
		}
		if sent > 70<<10 {
			t.Fatal("no error after 70 KiB")
		}
	}
	if _, _, err := c.Next(line); !errors.Is(err, ErrDoubt) {
		t.Errorf("the error did not stay: %v", err)
	}
}

func TestClientTunnel(t *testing.T) {
	c := new(Client)
	if _, err := events(c, []byte("CONNECT h:443 HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	c.Tunnel()
	if got, err := events(c, []byte("\x16\x03\x01 GET / HTTP/1.1\r\n\r\n")); got != nil || err != nil || c.Skippable() != forever {
		t.Errorf("in a tunnel: %q, %v, %d may be skipped", got, err, c.Skippable())
	}
	// What came too early to be known as the tunnel's is no matter afterwards.
	c = new(Client)
	if _, err := events(c, []byte("CONNECT h:443 HTTP/1.1\r\n\r\n\x16\x03\n")); !errors.Is(err, ErrDoubt) {
		t.Fatalf("err = %v", err)
	}
	c.Tunnel()
	if got, err := events(c, []byte("\x16\x03\x01")); got != nil || err != nil {
		t.Errorf("in a tunnel: %q, %v", got, err)
	}
}

// Strings of a request are the caller's to keep.
func TestStringsOutliveTheNextCall(t *testing.T) {
	c := new(Client)
	var kept []string
	for _, path := range []string{"/first", "/second", "/second", "/third"} {
		b := []byte("GET " + path + " HTTP/1.1\r\nHost: h" + path[1:] + "\r\n\r\n")
		for len(b) > 0 {
			n, ev, err := c.Next(b)
			if err != nil {
				t.Fatal(err)
			}
			if ev.Kind == RequestHead {
				kept = append(kept, ev.Request.Host+ev.Request.Path)
			}
			clear(b[:n])
			b = b[n:]
		}
	}
	if got, want := strings.Join(kept, " "), "hfirst/first hsecond/second hsecond/second hthird/third"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
