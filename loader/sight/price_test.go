// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"os"
	"testing"
)

// The price is that of a probe that is hit, and the probe goes.
func TestPrice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	price, err := Price()
	if err != nil {
		t.Fatal(err)
	}
	if price <= 0 {
		t.Errorf("a probe costs %v", price)
	}
	t.Logf("%v a call", price)
	if _, err := fileOffset(1); err == nil {
		t.Error("an address that is mapped nowhere has a place in the file")
	}
}
