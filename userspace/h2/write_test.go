// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/userspace/http1"
)

func TestRefusal(t *testing.T) {
	r := &http1.Refusal{
		Status:     429,
		RetryAfter: 1500 * time.Millisecond,
		Error:      "http_request_denied",
		Details:    "lane closed",
		Date:       time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
		Body:       "come back later\n",
		Close:      true,
	}
	want := []string{
		":status: 429",
		"date: Sun, 29 Nov 2026 12:00:00 GMT",
		"retry-after: 2",
		`proxy-status: egressd; error=http_request_denied; details="lane closed"`,
		"content-type: text/plain; charset=utf-8",
		"content-length: 16",
	}
	for _, tt := range []struct {
		name   string
		toHEAD bool
		max    int
		frames []string
	}{
		{"with a body", false, 16384, []string{"1/4", "0/1 come back later\n"}},
		{"to HEAD", true, 16384, []string{"1/5"}},
		{"in small frames", false, 9, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.ToHEAD = tt.toHEAD
			stream := AppendRefusal([]byte("before"), 7, r, tt.max)
			stream, ok := bytes.CutPrefix(stream, []byte("before"))
			if !ok {
				t.Fatal("what was there is gone")
			}
			var block []byte
			var body, frames []string
			ended := false
			for b := stream; len(b) > 0; {
				h := ParseFrameHeader(b)
				if h.Stream != 7 || int(h.Length) > tt.max || ended {
					t.Fatalf("frame %+v", h)
				}
				payload := b[FrameHeaderLen:][:h.Length]
				b = b[FrameHeaderLen+int(h.Length):]
				line := string('0'+rune(h.Type)) + "/" + string('0'+rune(h.Flags))
				if h.Type == Data {
					body = append(body, string(payload))
					line += " " + string(payload)
				} else {
					block = append(block, payload...)
				}
				frames = append(frames, line)
				ended = h.EndsStream()
			}
			if tt.frames != nil && !slices.Equal(frames, tt.frames) {
				t.Errorf("frames %q, want %q", frames, tt.frames)
			}
			if got := strings.Join(body, ""); got != r.Body && !tt.toHEAD {
				t.Errorf("body %q", got)
			}
			if !ended && !tt.toHEAD {
				t.Error("the stream does not end")
			}
			// A table of no size shows that nothing enters it.
			fields, err := hpack.NewDecoder(0, nil).DecodeFull(block)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range fields {
				got = append(got, f.Name+": "+f.Value)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q\nwant %q", got, want)
			}
			ours, err := NewDecoder(0).Decode(block)
			if err != nil || slices.ContainsFunc(ours.Fields, func(f Field) bool { return f.form == incremental }) {
				t.Errorf("%v: the answer changes the client's table", err)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	for status, size := range map[int]int{200: 1, 204: 1, 206: 1, 304: 1, 400: 1, 404: 1, 500: 1, 429: 5, 503: 5, 403: 5} {
		block := AppendStatus(nil, status)
		got, err := NewDecoder(0).Decode(block)
		want := ":status: " + string([]byte{'0' + byte(status/100), '0' + byte(status/10%10), '0' + byte(status%10)})
		if err != nil || len(block) != size || !slices.Equal(lines(got.Fields), []string{want}) {
			t.Errorf("status %d: % x, %q, %v", status, block, lines(got.Fields), err)
		}
	}
}

func TestSmallFrames(t *testing.T) {
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"reset", AppendReset(nil, 5, Cancel), "00 00 04 03 00 00000005 00000008"},
		{"window update", AppendWindowUpdate(nil, 3, 65535), "00 00 04 08 00 00000003 0000ffff"},
		{"go away", AppendGoAway(nil, 9, EnhanceYourCalm), "00 00 08 07 00 00000000 00000009 0000000b"},
		{"empty data", AppendData(nil, 1, nil, true, 10), "00 00 00 00 01 00000001"},
		{"data that does not end", AppendData(nil, 1, []byte("abc"), false, 2), "00 00 02 00 00 00000001 6162 00 00 01 00 00 00000001 63"},
		{"headers", AppendHeaders(nil, 1, EndStream, []byte("abc"), 2), "00 00 02 01 01 00000001 6162 00 00 01 09 04 00000001 63"},
	} {
		if want := mustHex(t, tt.want); string(tt.got) != string(want) {
			t.Errorf("%s: % x, want % x", tt.name, tt.got, want)
		}
	}
}
