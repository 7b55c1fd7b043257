// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/egressd/egressd/loader/sight"
)

// Kind is a TLS implementation that a process has.
type Kind uint8

// The kinds. Those after Go are recognised only, and cannot be probed.
const (
	None Kind = iota
	OpenSSL
	GnuTLS
	Go
	HiddenOpenSSL // linked in, without symbols
	BoringSSL
	Rustls
	NSS
	Java
	Foreign // a program of another architecture: nobody can tell
)

// String returns the name of the kind.
func (k Kind) String() string {
	switch k {
	case None:
		return "none"
	case OpenSSL:
		return "OpenSSL"
	case GnuTLS:
		return "GnuTLS"
	case Go:
		return "Go"
	case HiddenOpenSSL:
		return "OpenSSL without symbols"
	case BoringSSL:
		return "BoringSSL"
	case Rustls:
		return "rustls"
	case NSS:
		return "NSS"
	case Java:
		return "Java"
	case Foreign:
		return "unknown"
	}
	return "unknown"
}

// Finding is a TLS implementation in a file that a process maps.
type Finding struct {
	Kind  Kind
	File  string // as the process calls it, made printable
	Probe bool   // its functions can be probed
	Why   string // what Probe follows from, for people

	rank int
}

// Sightable is what Look found.
type Sightable struct {
	// Kind, File and Probe are those of the implementation that the process
	// most likely speaks TLS with.
	Kind  Kind
	File  string
	Probe bool
	// All has every finding, the most likely first.
	All []Finding
}

// Look finds out which TLS implementations a process has and whether they can
// be probed on this machine; why says so in words. It reads the files that
// the process maps, which takes some milliseconds to some hundred.
func Look(pid int) (s Sightable, why string) {
	list, err := processMaps(pid)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return s, "its memory map cannot be read: run as root"
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(list) == 0:
		return s, "there is no such process, or it has no program"
	case err != nil:
		return s, err.Error()
	}
	host, err := ReadHost()
	if err != nil {
		return s, err.Error()
	}
	// The name is only compared with names of the same origin.
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	var unread []string
	seen := map[fileID]bool{}
	for _, m := range list {
		if seen[m.file] {
			continue
		}
		seen[m.file] = true
		f, err := openMapped(pid, m)
		if err != nil {
			unread = append(unread, fmt.Sprintf("%s cannot be read: %v", printable(m.path), err))
			continue
		}
		s.All = append(s.All, findings(f, printable(m.path), m.path == program, host)...)
		f.Close()
	}
	slices.SortStableFunc(s.All, func(a, b Finding) int { return cmp.Compare(a.rank, b.rank) })
	if len(s.All) == 0 {
		if len(unread) > 0 {
			return s, strings.Join(unread, "; ")
		}
		return s, "it maps no TLS library that is known"
	}
	s.Kind, s.File, s.Probe = s.All[0].Kind, s.All[0].File, s.All[0].Probe
	return s, s.All[0].Why
}

// Ranks of findings: a program that brings its own TLS speaks it, whatever
// else it is linked with, and so does the code that a Java machine runs.
// Libraries without symbols are often there for other ends than TLS.
const (
	rankOwn = iota
	rankUsed
	rankPerhaps
)

// findings returns what one file has.
func findings(f *os.File, name string, program bool, host Host) []Finding {
	c, err := Inspect(f)
	if err != nil {
		if program {
			return []Finding{{Kind: Foreign, File: name, Why: fmt.Sprintf("its program is %v", err)}}
		}
		return nil
	}
	var all []Finding
	add := func(kind Kind, rank int, why string) {
		if program {
			rank = rankOwn
		}
		all = append(all, Finding{Kind: kind, File: name, Probe: why == "", Why: cmp.Or(why, "its functions can be probed"), rank: rank})
	}
	for _, t := range c.Targets {
		why := strings.Join(Unsafe(host, t.Library), "; ")
		switch t.Library {
		case sight.OpenSSL:
			add(OpenSSL, rankUsed, why)
		case sight.GnuTLS:
			add(GnuTLS, rankUsed, why)
		case sight.GoTLS:
			add(Go, rankUsed, why)
		}
	}
	switch {
	case len(c.Targets) > 0:
	case c.Go && c.Doubt != "":
		add(Go, rankUsed, "a Go program, and "+c.Doubt)
	case c.Go:
		// No method of crypto/tls is in it: it speaks no TLS.
	case c.JVM:
		add(Java, rankOwn, "Java brings its own TLS, which is compiled while it runs: it has no functions to probe")
	case c.NSS:
		add(NSS, rankPerhaps, "NSS reads files and sockets by the same functions: it is not probed")
	default:
		switch kind := marked(f); kind {
		case None:
		case Rustls:
			add(kind, rankPerhaps, "rustls has no functions with fixed names to probe")
		default:
			add(kind, rankPerhaps, fmt.Sprintf("%s is linked in and its symbols are stripped", strings.TrimSuffix(kind.String(), " without symbols")))
		}
	}
	return all
}
