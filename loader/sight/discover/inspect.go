// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"debug/elf"
	"fmt"
	"io"
	"slices"

	"github.com/egressd/egressd/loader/sight"
)

// Names of the functions of C libraries. The last are not probed: they tell
// what a file is.
var (
	sslNames = []string{"SSL_read", "SSL_read_ex", "SSL_write", "SSL_write_ex", "SSL_write_ex2",
		"SSL_do_handshake", "SSL_connect", "SSL_set_fd", "SSL_free"}
	gnutlsNames = []string{"gnutls_record_recv", "gnutls_record_send"}
	cNames      = exact(slices.Concat(sslNames, gnutlsNames, []string{bioWrite, jvmMark, nssMark})...)
)

const (
	bioWrite = "BIO_write"
	jvmMark  = "JNI_CreateJavaVM"
	nssMark  = "SSL_ImportFD" // only NSS names it so
)

// Contents is what a file is found to hold.
type Contents struct {
	// Targets are the libraries that can be probed, without a place: Path,
	// Dev, Inode and Name are empty.
	Targets []sight.Target
	// Go, JVM and NSS are true for what brings TLS of its own.
	Go, JVM, NSS bool
	// Doubt says why a Go program that is no target is none, where it may
	// still have TLS.
	Doubt string
}

// Inspect finds the TLS libraries in an ELF file by the functions that it
// defines; its name does not matter. The file may be hostile: what is read of
// it is bounded, and no probe is ever placed by a guess. A file that is no
// ELF file of this architecture is an error.
func Inspect(r io.ReaderAt) (Contents, error) {
	src := &source{r: r, left: readBudget}
	m, err := newImage(src)
	if err != nil {
		return Contents{}, err
	}
	var c Contents
	found, err := m.symbols(elf.SHT_DYNSYM, cNames)
	if err != nil {
		return c, fmt.Errorf("read dynamic symbols: %w", err)
	}
	c.Go = m.isGo()
	if !c.Go && !slices.ContainsFunc(found, func(s symbol) bool { return !s.undefined }) {
		// A static library may be left in the symbols that strip removes.
		static, err := m.symbols(elf.SHT_SYMTAB, cNames)
		if err != nil {
			return c, fmt.Errorf("read symbols: %w", err)
		}
		found = append(found, static...)
	}
	c.judge(m, found)
	if c.Go {
		probes, err := goProbes(m)
		switch {
		case err != nil:
			c.Doubt = err.Error()
		case len(probes) > 0:
			c.Targets = append(c.Targets, sight.Target{Library: sight.GoTLS, Probes: probes})
		}
	}
	if len(c.Targets) > 0 {
		id := m.buildID()
		for i := range c.Targets {
			c.Targets[i].BuildID = id
		}
	}
	return c, nil
}

// judge makes targets of the functions of C libraries.
func (c *Contents) judge(m *image, found []symbol) {
	defines := func(name string) bool {
		return slices.ContainsFunc(found, func(s symbol) bool { return s.name == name && !s.undefined })
	}
	calls := func(name string) bool {
		return slices.ContainsFunc(found, func(s symbol) bool { return s.name == name && s.undefined })
	}
	c.JVM, c.NSS = defines(jvmMark), defines(nssMark)
	add := func(lib sight.Library, names ...string) {
		if probes := m.probes(found, names); len(probes) > 0 {
			c.Targets = append(c.Targets, sight.Target{Library: lib, Probes: probes})
		}
	}
	switch {
	// GnuTLS has a library of OpenSSL's names in front of its own: what goes
	// through it is seen in GnuTLS.
	case (defines("SSL_read") || defines("SSL_read_ex")) && defines("SSL_write") && !calls(gnutlsNames[0]):
		add(sight.OpenSSL, append([]string{bioWrite}, sslNames...)...)
	case defines(bioWrite):
		add(sight.LibCrypto, bioWrite)
	}
	if defines(gnutlsNames[0]) && defines(gnutlsNames[1]) {
		add(sight.GnuTLS, gnutlsNames...)
	}
}

// probes returns the entries of the functions that have one of these names.
// Versions and aliases of a function at one address are one probe.
func (m *image) probes(found []symbol, names []string) []sight.Probe {
	var probes []sight.Probe
	for _, s := range found {
		if s.undefined || !slices.Contains(names, s.name) {
			continue
		}
		off, ok := m.offset(s.vaddr)
		if ok && !slices.ContainsFunc(probes, func(p sight.Probe) bool { return p.Entry == off }) {
			probes = append(probes, sight.Probe{Symbol: s.name, Entry: off})
		}
	}
	slices.SortFunc(probes, func(a, b sight.Probe) int { return cmp.Compare(a.Entry, b.Entry) })
	return probes
}

// hasProbe reports whether the target has a probe on the function.
func hasProbe(t sight.Target, symbol string) bool {
	return slices.ContainsFunc(t.Probes, func(p sight.Probe) bool { return p.Symbol == symbol })
}
