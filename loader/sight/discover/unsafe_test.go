// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/egressd/egressd/loader/sight"
)

func TestUnsafe(t *testing.T) {
	libraries := []sight.Library{sight.OpenSSL, sight.LibCrypto, sight.GnuTLS, sight.GoTLS}
	for _, tt := range []struct {
		host   Host
		reason string // that is given, of the libraries below
		unsafe []sight.Library
	}{
		{Host{Release: "6.18.44", Arch: "amd64", Filtered: 3}, "", nil},
		{Host{Release: "6.11.0", Arch: "amd64"}, "", nil},
		{Host{Release: "6.11.2-arch1-1", Arch: "amd64", Filtered: 3}, "any of 3 processes", []sight.Library{sight.OpenSSL, sight.GnuTLS}},
		{Host{Release: "6.13.9", Arch: "amd64", Filtered: 1}, "any of 1 processes", []sight.Library{sight.OpenSSL, sight.GnuTLS}},
		{Host{Release: "6.10.14", Arch: "amd64", Filtered: 1}, "", nil},
		{Host{Release: "6.14.0-rc1", Arch: "amd64", Filtered: 1}, "", nil},
		{Host{Release: "5.12.0", Arch: "amd64", Filtered: 1}, "", nil},
		{Host{Release: "6.12.0", Arch: "arm64", Filtered: 1}, "", nil},
		{Host{Release: "strange", Arch: "amd64", Filtered: 1}, "kernel strange", []sight.Library{sight.OpenSSL, sight.GnuTLS}},
		{Host{Release: "6.18.44", Arch: "amd64", PanicOnWarn: true}, "panic_on_warn", libraries},
	} {
		for _, lib := range libraries {
			got := strings.Join(Unsafe(tt.host, lib), "; ")
			want := false
			for _, l := range tt.unsafe {
				want = want || l == lib
			}
			if (got != "") != want || want && !strings.Contains(got, tt.reason) {
				t.Errorf("%+v, %s: got %q", tt.host, lib, got)
			}
		}
	}
}

func TestReadHost(t *testing.T) {
	h, err := ReadHost()
	if err != nil || h.Release == "" || h.Arch != runtime.GOARCH {
		t.Errorf("got %+v, %v", h, err)
	}
	want := mustRun(t, "", nil, "sysctl", "-n", "kernel.panic_on_warn") != "0\n"
	if h.PanicOnWarn != want {
		t.Errorf("panic_on_warn: got %v, want %v", h.PanicOnWarn, want)
	}
	if !h.filtersKill() && h.Filtered != 0 {
		t.Errorf("got %+v: filters are counted although they do not matter", h)
	}
}

// A process with a filter of its own is counted.
func TestCountFiltered(t *testing.T) {
	g := mustGroup(t)
	status := func(c *child) []byte {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid()))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	c := g.python()
	inherited := filtered(status(c))
	// A filter that allows everything: no_new_privs, then PR_SET_SECCOMP with
	// one instruction (BPF_RET, SECCOMP_RET_ALLOW).
	c.do("import ctypes, struct; lib = ctypes.CDLL(None, use_errno=True)")
	c.do("insn = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000), 8)")
	c.do("prog = ctypes.create_string_buffer(struct.pack('HP', 1, ctypes.addressof(insn)))")
	c.do("assert lib.prctl(38, 1, 0, 0, 0) == 0 and lib.prctl(22, 2, prog) == 0, ctypes.get_errno()")
	if !filtered(status(c)) {
		t.Errorf("a filtered process is not seen to be one:\n%s", status(c))
	}
	n, err := countFiltered()
	c.end()
	// Others may come and go meanwhile, but hardly with filters.
	left, errLeft := countFiltered()
	if err != nil || errLeft != nil || !inherited && n <= left {
		t.Errorf("got %d with the process, %v, and %d without, %v", n, err, left, errLeft)
	}
}

func TestFiltered(t *testing.T) {
	for text, want := range map[string]bool{
		"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n": true,
		"Seccomp:\t1\n":                      true,
		"Seccomp:\t0\nSeccomp_filters:\t0\n": false,
		"Name:\tSeccomp:\t2\nSeccomp:\t0\n":  false,
		"Seccomp_filters:\t1\n":              false,
		"":                                   false,
	} {
		if got := filtered([]byte(text)); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}
