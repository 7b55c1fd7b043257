// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"path"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Process is one process of the scope that speaks TLS, and how well it is seen.
type Process struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Cgroup  string `json:"cgroup,omitempty"`
	Library string `json:"library,omitempty"` // by which it speaks TLS, if that is known
	// Connections are those of TLS that go through egressd now.
	Connections int `json:"connections"`
	// Sight is how their inside is seen: keys, uprobe, terminate or blind; of
	// several ways the one that sees least.
	Sight string `json:"sight"`
	// Expected says that no connection shows it: so it is to be expected.
	Expected bool `json:"expected,omitempty"`
	// Why it is not seen better, and what to do to see it one step better; both
	// are empty where it is seen as well as it can be.
	Why  string `json:"why,omitempty"`
	Next string `json:"next,omitempty"`
}

// Library is what a process speaks TLS with, as far as a remedy depends on it.
type Library uint8

// Libraries.
const (
	NoTLS     Library = iota // none was found
	OpenSSL                  // and others by which programs log keys if their environment says so
	GoTLS                    // crypto/tls of Go
	BoringSSL                // linked into the program, as in Chromium
	Rustls                   // linked into the program
	JavaTLS                  // that of a Java virtual machine
)

// Look is what can be told of a process from outside.
type Look struct {
	Library Library
	Name    string // of the library, for people
	Probed  bool   // uprobes can show what it reads and writes
	Why     string // why they cannot
}

// facts are what is known of one process.
type facts struct {
	look   Look
	keyLog string         // file that it logs keys to, "" for none
	sights map[string]int // of its connections
	unit   string         // of systemd, "" if it is in none
}

// rules are what of the policy decides how far the inside of TLS is seen.
type rules struct {
	mode            policy.TLSMode // the furthest of all budgets
	keyLog, uprobes bool
	keyDir          string
	noProbes        string // why uprobes stay off on this machine, "" if they do not
}

// rulesOf reads them.
func rulesOf(p *policy.Policy, noProbes string) rules {
	r := rules{mode: p.TLS.Mode, keyLog: p.TLS.KeyLog, uprobes: p.TLS.Uprobes, keyDir: p.TLS.KeyDir, noProbes: noProbes}
	for _, b := range p.Budgets {
		r.mode = max(r.mode, b.TLS)
	}
	return r
}

// worst are the sights, the one that sees least first.
var worst = [...]policy.Sight{policy.SightBlind, policy.SightUprobe, policy.SightKeys, policy.SightTerminate}

// judge says how the process is seen and how to see it better.
func (f facts) judge(r rules) (sight policy.Sight, expected bool, why, next string) {
	for _, s := range worst {
		if f.sights[s.String()] > 0 {
			sight = s
			break
		}
	}
	if sight == policy.SightNone {
		sight, expected = f.expect(r), true
	}
	if sight == policy.SightKeys || sight == policy.SightTerminate {
		return sight, expected, "", ""
	}
	why, next = f.better(r)
	return sight, expected, why, next
}

// expect is how the next connection of the process will be seen.
func (f facts) expect(r rules) policy.Sight {
	switch {
	case r.mode == policy.Terminate:
		return policy.SightTerminate
	case r.mode != policy.Observe:
		return policy.SightBlind
	case r.keyLog && f.logsTo(r.keyDir):
		return policy.SightKeys
	case r.uprobes && r.noProbes == "" && f.look.Probed:
		return policy.SightUprobe
	}
	return policy.SightBlind
}

// logsTo reports whether the process logs keys to a pipe in dir.
func (f facts) logsTo(dir string) bool {
	return f.keyLog != "" && dir != "" && path.Dir(path.Clean(f.keyLog)) == path.Clean(dir)
}

// better says why the process is not seen by its keys, and what would change
// that.
func (f facts) better(r rules) (why, next string) {
	switch {
	case r.mode == policy.Passthrough:
		return "the policy has TLS passed through", "write tls: {mode: observe} into the policy file"
	case !r.keyLog && !r.uprobes:
		return "the policy allows no source", "write tls: {sources: [keylog, uprobes]} into the policy file"
	case r.keyLog && f.logsTo(r.keyDir):
		return "its connections are older than its key log, or speak what cannot be read", "wait for its next connection; egressd_tls_doubts_total tells the reason"
	case r.keyLog && f.keyLog != "":
		return "it logs keys to " + f.keyLog, "let it log them to a pipe of egressd instead: egressd observe pipe"
	case !r.keyLog:
		why, next = f.whyNoProbes(r), "allow key logs, too: tls: {sources: [keylog, uprobes]}"
		return why, next
	}
	why = "it logs no keys"
	if no := f.whyNoProbes(r); no != "" {
		why += ", and " + no
	}
	return why, f.logKeys(r)
}

// whyNoProbes says why uprobes do not show the process, "" if they do.
func (f facts) whyNoProbes(r rules) string {
	switch {
	case !r.uprobes:
		return "the policy allows no uprobes"
	case r.noProbes != "":
		return "uprobes stay off: " + r.noProbes
	case f.look.Probed:
		return ""
	case f.look.Why != "":
		return f.look.Why
	}
	return "uprobes do not reach it"
}

// logKeys says how to make the process log keys.
func (f facts) logKeys(r rules) string {
	start := "start it with: egressd exec --observe"
	if f.unit != "" {
		start = "egressd observe install " + f.unit + ", then restart it"
	}
	switch f.look.Library {
	case GoTLS:
		if !r.uprobes {
			return "build it with tls.Config.KeyLogWriter, or allow uprobes"
		}
		return "build it with tls.Config.KeyLogWriter"
	case BoringSSL:
		return "if it is Chromium, start it with --ssl-key-log-file=" + filepath.Join(r.keyDir, "PIPE")
	case Rustls:
		return "build it with rustls::KeyLogFile, then " + start
	case JavaTLS:
		return "load a Java agent that logs keys, or write tls: {mode: terminate}"
	}
	return start
}

// unitOf is the systemd service whose cgroup a path is or lies in, "" if there
// is none that could be told to log keys: one of a user's manager is not.
func unitOf(cgroup string) string {
	for part := range strings.SplitSeq(cgroup, "/") {
		if strings.HasPrefix(part, "user@") {
			return ""
		}
		if strings.HasSuffix(part, ".service") {
			return part
		}
	}
	return ""
}
