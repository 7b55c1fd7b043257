// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// doctorJSON runs doctor --json and returns what it printed, its shape known to
// the last field.
func doctorJSON(t *testing.T, args ...string) (doctorReport, error) {
	t.Helper()
	var out bytes.Buffer
	e := hostEnv()
	e.stdout = &out
	cmd := newDoctorCommand(e)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(args, "--json"))
	err := cmd.ExecuteContext(context.Background())
	var report doctorReport
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&report); err != nil {
		t.Fatalf("decode report: %v", err)
	}
	return report, err
}

// doctorReport is the JSON that programs may rely on.
type doctorReport struct {
	OK     bool `json:"ok"`
	Checks []struct {
		Check   string `json:"check"`
		Status  string `json:"status"`
		Finding string `json:"finding"`
		Remedy  string `json:"remedy"`
		Unknown bool   `json:"unknown"`
	} `json:"checks"`
	Processes []struct {
		PID         int    `json:"pid"`
		Command     string `json:"command"`
		Cgroup      string `json:"cgroup"`
		Library     string `json:"library"`
		Connections int    `json:"connections"`
		Sight       string `json:"sight"`
		Expected    bool   `json:"expected"`
		Why         string `json:"why"`
		Next        string `json:"next"`
	} `json:"processes"`
	Unseen int `json:"unseen"`
}

func (r doctorReport) status(check string) string {
	for _, c := range r.Checks {
		if c.Check == check {
			return c.Status
		}
	}
	return "missing"
}

// Without a daemon the machine is looked at all the same. This very process is
// written in Go and speaks TLS, so it would be listed if it were another's.
func TestDoctorWithoutDaemon(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yml")
	if err := os.WriteFile(file, []byte("budgets: [{rate: 1/s}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := doctorJSON(t, "--config", file, "--socket", filepath.Join(dir, "none.sock"))
	if err != nil || !report.OK {
		t.Errorf("got %v and %+v, want no failure on the machine that tests", err, report.Checks)
	}
	want := []string{
		"privileges", "kernel", "kernel types", "lockdown", "cgroup v2", "BPF file system", "programs", "loopback",
		"sysctls", "policy file", "probes", "pacing", "daemon", "foreign programs", "open files",
	}
	var got []string
	for _, c := range report.Checks {
		got = append(got, c.Check)
		if !slices.Contains([]string{"ok", "warn", "fail"}, c.Status) || c.Finding == "" || (c.Status == "ok") != (c.Remedy == "") {
			t.Errorf("check %+v: want a status, a finding and, unless it is ok, a remedy", c)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("checks: got %q, want %q", got, want)
	}
	if report.status("policy file") != "ok" || report.status("daemon") != "warn" {
		t.Errorf("got %+v, want a policy file that is ok and a warning of the daemon", report.Checks)
	}
	if os.Geteuid() == 0 && report.status("programs") != "ok" {
		t.Errorf("programs: got %s, want ok as root", report.status("programs"))
	}
}

// A fault ends it with status 1, and a file that was named and is not there is
// one.
func TestDoctorFails(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yml")
	if err := os.WriteFile(bad, []byte("budgets: [{rate: fast}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{bad, filepath.Join(dir, "none.yml")} {
		report, err := doctorJSON(t, "--config", file, "--socket", filepath.Join(dir, "none.sock"))
		var status *statusError
		if !errors.As(err, &status) || status.status != statusFailed || report.OK || report.status("policy file") != "fail" {
			t.Errorf("%s: got %v and %+v, want status 1 and a policy file that fails", file, err, report)
		}
	}
}
