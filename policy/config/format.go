// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// Format writes a budget as the policy file would have it, under "budgets:" and
// indented by two: what differs from the defaults, in the order of the
// documentation. Parse reads the same budget out of it, where the file has the
// dialect that it names, if that is none of the built-in ones, and does not set
// tls for all budgets, which one of passthrough leaves to it. Notes stand above it
// as comments.
func Format(b *policy.Budget, notes ...string) string {
	var out strings.Builder
	out.WriteString("budgets:\n")
	for _, note := range notes {
		out.WriteString("  # " + note + "\n")
	}
	f := formatter{&out, "  - "}
	if b.Name != "" {
		f.line("name", scalar(b.Name))
	}
	def := defaultBudget()
	f.match(&b.Match)
	if b.Per != def.Per {
		f.line("per", "["+strings.Join(perWords(b.Per), ", ")+"]")
	}
	f.limits(b)
	if b.Unit == policy.Connections {
		f.line("unit", "connections")
	}
	f.flow("queue", queueFields(&b.Queue, &def.Queue))
	if b.OnFull == policy.Drop {
		f.line("on_full", "drop")
	}
	f.flow("cooldown", cooldownFields(&b.Cooldown, &def.Cooldown))
	var recovery []string
	if b.Recovery != def.Recovery {
		recovery = []string{"factor: " + decimal(b.Recovery.Factor), "step: " + decimal(b.Recovery.Step)}
	}
	f.flow("recovery", recovery)
	f.flow("retry", retryFields(&b.Retry, &def.Retry))
	switch {
	case b.HeadersOff:
		f.line("headers", `"off"`)
	case b.Dialect != nil:
		f.line("headers", scalar(b.Dialect.Name))
	}
	if b.TLS != policy.Passthrough || !b.Flights {
		pace := "flights"
		if !b.Flights {
			pace = "connections"
		}
		f.flow("tls", []string{"mode: " + tlsWords[b.TLS], "pace: " + pace})
	}
	switch b.Mode {
	case policy.Shadow:
		f.line("mode", "shadow")
	case policy.Off:
		f.line("mode", `"off"`)
	}
	if b.FailClosed {
		f.line("fail", "closed")
	}
	return out.String()
}

// formatter writes the lines of one item of a list.
type formatter struct {
	out    *strings.Builder
	indent string // of the next line
}

func (f *formatter) line(key, value string) {
	f.out.WriteString(f.indent + key + ": " + value + "\n")
	f.indent = "    "
}

// flow writes a mapping in one line, unless it is empty.
func (f *formatter) flow(key string, fields []string) {
	if len(fields) > 0 {
		f.line(key, "{"+strings.Join(fields, ", ")+"}")
	}
}

func (f *formatter) match(m *policy.Match) {
	var fields []string
	if len(m.Hosts) > 0 {
		hosts := make([]string, len(m.Hosts))
		for i, h := range m.Hosts {
			hosts[i] = scalar(h.String())
		}
		fields = append(fields, "hosts: ["+strings.Join(hosts, ", ")+"]")
	}
	if m.PortsNamed {
		ports := make([]string, len(m.Ports))
		for i, port := range m.Ports {
			ports[i] = strconv.Itoa(int(port))
		}
		fields = append(fields, "ports: ["+strings.Join(ports, ", ")+"]")
	}
	if m.Path != "" {
		fields = append(fields, "path: "+scalar(m.Path))
	}
	if len(m.Methods) > 0 {
		methods := make([]string, len(m.Methods))
		for i, method := range m.Methods {
			methods[i] = scalar(method)
		}
		fields = append(fields, "methods: ["+strings.Join(methods, ", ")+"]")
	}
	f.flow("match", fields)
}

func (f *formatter) limits(b *policy.Budget) {
	switch {
	case b.Auto:
		f.line("rate", autoRate)
		if b.Rate != autoStart {
			f.line("start", exactRate(b.Rate))
		}
	case b.Rate.Count > 0:
		f.line("rate", exactRate(b.Rate))
	}
	if b.Rate.Count > 0 && b.Burst != 1 {
		f.line("burst", decimal(b.Burst))
	}
	if w := b.Window; w.Limit > 0 {
		fields := []string{"limit: " + strconv.FormatUint(w.Limit, 10), "per: " + strict.Duration(w.Per)}
		if w.Kind == policy.Fixed {
			fields = append(fields, "kind: fixed")
		}
		f.flow("window", fields)
	}
	if b.Concurrency > 0 {
		f.line("concurrency", strconv.Itoa(b.Concurrency))
	}
	switch {
	case b.Cost.Header != "":
		f.flow("cost", []string{"units: " + strconv.FormatUint(b.Cost.AtDispatch(), 10), "header: " + scalar(b.Cost.Header)})
	case b.Cost.AtDispatch() > 1:
		f.line("cost", strconv.FormatUint(b.Cost.Units, 10))
	}
}

func queueFields(q, def *policy.Queue) (fields []string) {
	if q.Max != def.Max {
		fields = append(fields, "max: "+strconv.Itoa(q.Max))
	}
	if q.MaxWait != def.MaxWait {
		fields = append(fields, "max_wait: "+strict.Duration(q.MaxWait))
	}
	if q.FairBy != def.FairBy {
		fields = append(fields, "fair_by: "+fairWords[q.FairBy])
	}
	return fields
}

func cooldownFields(c, def *policy.Cooldown) (fields []string) {
	if c.Default != def.Default {
		fields = append(fields, "default: "+strict.Duration(c.Default))
	}
	if c.Max != def.Max {
		fields = append(fields, "max: "+strict.Duration(c.Max))
	}
	if c.Spread != def.Spread {
		fields = append(fields, "spread: "+decimal(c.Spread))
	}
	if !slices.Equal(c.Statuses, def.Statuses) {
		fields = append(fields, "statuses: "+integers(c.Statuses))
	}
	return fields
}

func retryFields(r, def *policy.Retry) (fields []string) {
	if r.Absorb != def.Absorb || r.Attempts != def.Attempts || r.MaxBody != def.MaxBody || !slices.Equal(r.Statuses, def.Statuses) {
		fields = append(fields, "absorb: "+strconv.FormatBool(r.Absorb))
	}
	if r.Attempts != def.Attempts {
		fields = append(fields, "attempts: "+strconv.Itoa(r.Attempts))
	}
	if r.MaxBody != def.MaxBody {
		fields = append(fields, "max_body: "+strconv.FormatInt(r.MaxBody, 10)+"B")
	}
	if !slices.Equal(r.Statuses, def.Statuses) {
		fields = append(fields, "statuses: "+integers(r.Statuses))
	}
	return fields
}

// perBits are the words of per, in their order.
var perBits = []struct {
	word string
	bit  policy.Per
}{
	{"destination", policy.PerDestination},
	{"site", policy.PerSite},
	{"exit", policy.PerExit},
	{"session", policy.PerSession},
	{"path", policy.PerPath},
}

func perWords(per policy.Per) (words []string) {
	for _, p := range perBits {
		if per&p.bit != 0 {
			words = append(words, p.word)
		}
	}
	return words
}

func integers(all []int) string {
	words := make([]string, len(all))
	for i, n := range all {
		words[i] = strconv.Itoa(n)
	}
	return "[" + strings.Join(words, ", ") + "]"
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// exactRate is formatRate without a loss of digits.
func exactRate(r policy.Rate) string {
	text := formatRate(r)
	if got, err := parseRate(text); err == nil && got == r {
		return text
	}
	_, every, _ := strings.Cut(formatRate(policy.Rate{Count: 1, Every: r.Every}), "/")
	return decimal(r.Count) + "/" + every
}

// scalar is text as YAML reads it: in quotes unless it is sure to be text
// without.
func scalar(s string) string {
	letter := false
	for i := range len(s) {
		c := s[i]
		isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !isLetter && !isAlphanumeric(c) && (i == 0 && c != '/' || strings.IndexByte("._-/", c) < 0) {
			return strconv.Quote(s)
		}
		letter = letter || isLetter
	}
	switch strings.ToLower(s) {
	case "", "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return strconv.Quote(s)
	}
	// Numbers have letters, too: 0x1, 1e5, .inf, and dates have dashes.
	if !letter && strings.Count(s, ".") != 3 || '0' <= s[0] && s[0] <= '9' && strings.Count(s, ".") < 2 {
		return strconv.Quote(s)
	}
	return s
}
