// SPDX-License-Identifier: Apache-2.0

package socks

import (
	"slices"
	"strings"
	"testing"
)

// fuzzScript has client and server speak in turns: each byte of turns gives
// the side in its lowest bit and the number of bytes in the others. What is
// left over follows at the end, client first.
func fuzzScript(client, server string, turns []byte) []step {
	var script []step
	rest := [2]string{client, server}
	for _, turn := range turns[:min(len(turns), 64)] {
		side := turn & 1
		n := min(int(turn>>1), len(rest[side]))
		script = append(script, step{"cs"[side : side+1], rest[side][:n]})
		rest[side] = rest[side][n:]
	}
	return append(script, step{"c", client[len(client)-len(rest[0]):]}, step{"s", server[len(server)-len(rest[1]):]})
}

// flatten is a script as the arguments of a fuzz target.
func flatten(script []step) (client, server string, turns []byte) {
	for _, s := range script {
		side := strings.Index("cs", s.from)
		if side == 0 {
			client += s.data
		} else {
			server += s.data
		}
		for n := len(s.data); n > 0; n -= 127 {
			turns = append(turns, byte(min(n, 127)<<1|side))
		}
	}
	return client, server, turns
}

// FuzzObserver plays both directions. play holds the contract of a call.
func FuzzObserver(f *testing.F) {
	for _, tt := range scripts {
		client, server, turns := flatten(tt.script)
		f.Add(client, server, turns, uint8(3))
		f.Add(client, server, []byte(nil), uint8(1))
	}
	f.Fuzz(func(t *testing.T, client, server string, turns []byte, size uint8) {
		if len(client) > 4<<10 || len(server) > 4<<10 {
			return
		}
		script := fuzzScript(client, server, turns)
		whole := play(t, script, 1<<20)

		// How the stream was cut changes nothing.
		for _, size := range []int{1, int(size) + 1} {
			cut := play(t, script, size)
			if cut.String() != whole.String() || cut.observer != whole.observer {
				t.Fatalf("in pieces of %d:\n got %v\n     %+v\nwant %v\n     %+v", size, cut, cut.observer, whole, whole.observer)
			}
		}

		// Nothing that is said depends on the password.
		if len(whole.password) > 0 {
			other := []byte(client)
			for _, i := range whole.password {
				other[i] ^= 0xa5
			}
			got := play(t, fuzzScript(string(other), server, turns), 1<<20)
			if got.String() != whole.String() || got.observer != whole.observer {
				t.Fatalf("with another password:\n got %v\nwant %v", got, whole)
			}
		}

		// An error is one of the closed set.
		if err, ok := whole.err.(*Error); whole.err != nil && (!ok || !slices.Contains(reasons[:], err)) {
			t.Fatalf("error %v", whole.err)
		}
		// No byte is lost or invented.
		if consumed := whole.clientSeen + len(whole.client); whole.err == nil && consumed != len(client) {
			t.Fatalf("%d bytes of the client of %d", consumed, len(client))
		}
	})
}
