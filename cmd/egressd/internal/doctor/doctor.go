// SPDX-License-Identifier: Apache-2.0

// Package doctor says what is wrong with a machine, and with the egressd that
// runs on it, and what to do about each. It changes nothing and works without
// a daemon and without privileges: then it says what it could not check.
//
// What is found out and what is made of it are apart: a check is a function
// from what was found to a Check.
package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Status is how a check ended. The set is closed.
type Status string

// Statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // it works, but not as well as it could, or nobody knows
	Fail Status = "fail" // connections that the policy names go untouched, or the daemon does not start
)

// Check is one thing that was looked at.
type Check struct {
	Name    string `json:"check"`
	Status  Status `json:"status"`
	Finding string `json:"finding"`           // one line
	Remedy  string `json:"remedy,omitempty"`  // one line; never empty where Status is not OK
	Unknown bool   `json:"unknown,omitempty"` // it could not be checked
}

// Report is all that was found.
type Report struct {
	OK        bool      `json:"ok"` // nothing failed
	Checks    []Check   `json:"checks"`
	Processes []Process `json:"processes"` // with TLS, in the scope
	// Unseen is the number of processes of the scope that could not be looked
	// into, for want of privileges.
	Unseen int `json:"unseen,omitempty"`
}

// Failed reports whether a check failed.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Status == Fail })
}

func ok(name, format string, args ...any) Check {
	return Check{Name: name, Status: OK, Finding: line(fmt.Sprintf(format, args...))}
}

func warn(name, remedy, format string, args ...any) Check {
	return Check{Name: name, Status: Warn, Remedy: remedy, Finding: line(fmt.Sprintf(format, args...))}
}

func fail(name, remedy, format string, args ...any) Check {
	return Check{Name: name, Status: Fail, Remedy: remedy, Finding: line(fmt.Sprintf(format, args...))}
}

// asRoot is the remedy for what could not be checked.
const asRoot = "run it as root: sudo egressd doctor"

// unknown is a check that could not be made.
func unknown(name, why string) Check {
	return Check{Name: name, Status: Warn, Remedy: asRoot, Finding: line("not checked: " + why), Unknown: true}
}

// line puts a text of several lines, as a verifier writes, into one that no
// terminal obeys.
func line(text string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if strings.TrimSpace(rest) != "" {
		first += " …"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, first)
}

// reason is the text of err without the sentinel in front of it.
func reason(err, sentinel error) string {
	if errors.Is(err, sentinel) {
		return strings.TrimPrefix(err.Error(), sentinel.Error()+": ")
	}
	return err.Error()
}
