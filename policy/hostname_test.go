// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
)

func TestIsHostName(t *testing.T) {
	long := strings.Repeat("a", 63)
	for name, want := range map[string]bool{
		"store.example": true, "redis": true, "xn--bcher-kva.example": true, "_tcp.a_b.example": true, "1.example": true,
		long + "." + long + "." + long + "." + long[:61]: true, long + "." + long + "." + long + "." + long[:62]: false,
		long + "a.example": false, "": false, "a..example": false, "a.example.": false, "-a.example": false, "a-.example": false,
		"A.example": false, "a.1": false, "192.0.2.1": false, "a b": false, "*.example": false, "b\xfccher": false,
	} {
		if got := IsHostName(name); got != want {
			t.Errorf("%q: got %t, want %t", name, got, want)
		}
	}
}
