// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"testing"
	"time"
)

// vmName is the variable that the init of a test machine sets.
const vmName = "EGRESSD_VM"

func TestMain(m *testing.M) {
	if os.Getenv(launchName) != "" {
		launch(os.Args[1:])
	}
	if url := os.Getenv(fetchName); url != "" {
		fetch(url)
	}
	os.Exit(m.Run())
}

// needVM skips a test that would change this machine, unless it is one of
// `make test-vm`. There, a test that is skipped is one that failed.
func needVM(t testing.TB) {
	t.Helper()
	if os.Getenv(vmName) == "" {
		t.Skip("needs a machine for itself: make test-vm")
	}
}

// needRoot skips where nobody could make a namespace.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// waitFor waits until ok, for a time that is long even for a slow machine.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 30 s for %s", what)
		}
	}
}
