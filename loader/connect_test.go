// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"
)

func TestRedirectV4(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	r.through(GateRedirected, func() {
		c := r.agent.tcp4().mustConnect("192.0.2.1:8080")
		_, flow := r.accept()
		if got, want := flow.Dest.String(), "192.0.2.1:8080"; got != want {
			t.Errorf("flow destination: got %s, want %s", got, want)
		}
		if got, want := c.peer().String(), "192.0.2.1:8080"; got != want {
			t.Errorf("getpeername: got %s, want %s", got, want)
		}
		t.Logf("%+v", flow)
		t.Logf("%+v", c.local())
	})
}
