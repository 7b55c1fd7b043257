// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// read collects all frames of text.
func read(t testing.TB, text string) (all []Frame) {
	t.Helper()
	if err := Read(strings.NewReader(text), func(f Frame) { all = append(all, f) }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFramesComeBack(t *testing.T) {
	want := []Frame{
		{N: 0, Kind: Boot, Text: "6.1.0"},
		{N: 1, Kind: Begin, Run: "loader"},
		{N: 2, Kind: Output, Run: "loader", Text: "\x16--- PASS: TestA (0.00s)\n{\"kind\":\"done\"}\n\x00\u00e9"},
		{N: 3, Kind: Fault, Text: "oh"},
		{N: 4, Kind: End, Run: "loader", Code: 137, Elapsed: 3 * time.Second},
		{N: 5, Kind: Done},
	}
	var port bytes.Buffer
	w := NewWriter(&port)
	for _, f := range want {
		f.N = 99 // not the sender's to say
		if err := w.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	// A serial port may add carriage returns, and give bytes one by one.
	text := strings.ReplaceAll(port.String(), "\n", "\r\n")
	var got []Frame
	if err := Read(iotest.OneByteReader(strings.NewReader(text)), func(f Frame) { got = append(got, f) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWhatIsLostIsAFault(t *testing.T) {
	const first, third = `{"n":0,"kind":"boot","text":"6.1"}` + "\n", `{"n":2,"kind":"done"}` + "\n"
	for _, tt := range []struct {
		name, text string
		kinds      []Kind
	}{
		{"nothing", "", nil},
		{"good", first + `{"n":1,"kind":"done"}` + "\n", []Kind{Boot, Done}},
		{"no newline at the end", strings.TrimSpace(first), []Kind{Boot}},
		{"a frame is missing", first + third, []Kind{Boot, Fault, Done}},
		{"the first is missing", third, []Kind{Fault, Done}},
		{"the same again", first + first, []Kind{Boot, Fault, Boot}},
		{"torn", first + `{"n":1,"kind":"ou` + "\n" + third, []Kind{Boot, Fault, Fault, Done}},
		{"torn at the end", first + `{"n":1,"ki`, []Kind{Boot, Fault}},
		{"two in one line", strings.TrimSpace(first) + third, []Kind{Fault}},
		{"a panic in between", first + "Kernel panic - not syncing\n", []Kind{Boot, Fault}},
		{"unknown kind", `{"n":0,"kind":"pass"}`, []Kind{Fault}},
		{"unknown field", `{"n":0,"kind":"done","passed":9}`, []Kind{Fault}},
		{"negative number", `{"n":-1,"kind":"done"}`, []Kind{Fault}},
		{"too long", `{"n":0,"kind":"output","text":"` + strings.Repeat("x", maxLine) + `"}` + "\n" + third, []Kind{Fault, Fault, Done}},
	} {
		var kinds []Kind
		for _, f := range read(t, tt.text) {
			kinds = append(kinds, f.Kind)
		}
		if !slices.Equal(kinds, tt.kinds) {
			t.Errorf("%s: got %v, want %v", tt.name, kinds, tt.kinds)
		}
	}
}

func TestReadTellsErrors(t *testing.T) {
	broken := errors.New("broken")
	in := io.MultiReader(strings.NewReader(`{"n":0,"kind":"done"}`+"\n"), iotest.ErrReader(broken))
	n := 0
	if err := Read(in, func(Frame) { n++ }); !errors.Is(err, broken) || n != 1 {
		t.Errorf("got %d frames and %v, want one and %v", n, err, broken)
	}
}

func TestManySenders(t *testing.T) {
	var port bytes.Buffer
	w := NewWriter(&port)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if err := w.Send(Frame{Kind: Output, Text: "x\n"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	frames := read(t, port.String())
	if len(frames) != 400 || slices.ContainsFunc(frames, func(f Frame) bool { return f.Kind != Output }) {
		t.Errorf("got %d frames, want 400 of output alone", len(frames))
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"n":0,"kind":"boot","text":"6.1"}` + "\n" + `{"n":2,"kind":"done"}`)
	f.Add("Kernel panic\n{\"n\":0}\r\n\x00")
	f.Fuzz(func(t *testing.T, text string) {
		next, told := 0, false
		for _, got := range read(t, text) {
			// Whatever comes, numbers go on by one unless a fault tells.
			if got.Kind != Fault && got.N != next && !told {
				t.Errorf("%q: frame %d where %d was due, and no fault before it", text, got.N, next)
			}
			told = got.Kind == Fault
			if !told {
				next = got.N + 1
			}
		}
		// What is appended to a line of its own is always read, or told.
		all := read(t, text+"\n"+`{"n":7,"kind":"done"}`+"\n")
		if last := all[len(all)-1]; last.Kind != Done || last.N != 7 {
			t.Errorf("%q: got last frame %+v, want the appended one", text, last)
		}
	})
}
