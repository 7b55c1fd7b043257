// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/egressd/egressd/metrics"
)

// head is what docs/METRICS.md says before the families.
const head = `# Metrics

<!-- Made by metrics/generate from the table in metrics/families.go: change it there, then make generate. -->

egressd answers Prometheus at ` + "`metrics: {listen: 127.0.0.1:9477}`" + `, path ` + "`/metrics`" + `. Beside the families below there are those of the Go runtime and of the
process (` + "`go_…`, `process_…`" + `).

**Labels** are names that the policy file has, or come from small closed sets: no address, user name or path is in them. ` + "`destination`" + ` is the name
of a host or budget in the policy, or ` + "`other`" + `: what no budget names, and what is beyond the bound of %d pairs of destination and exit that each
family shows. ` + "`exit`" + ` is as in ` + "`egressd exits`" + `; lanes of budgets that do not tell exits apart have the exit ` + "`all`" + `. Counters begin at 0 with the daemon.

**Histograms.** Both have classic buckets. Where the type says native, a server that scrapes native histograms gets those instead, and queries leave
out ` + "`_bucket` and `le`" + `.

**TLS and logins.** ` + "`metrics: {web_config_file: /etc/egressd/web.yml}`" + ` names a file as other exporters have it
([its keys](https://prometheus.io/docs/prometheus/latest/configuration/https/)): everything at the address, the live page too, is then behind it. Unlike theirs, it is
read at the start and at each reload, and if it is wrong the one before stays in force; the certificate and key that it names are read for each
connection. ` + "`egressd check`" + ` looks at it, too.

` + "```yaml\ntls_server_config: {cert_file: metrics.crt, key_file: metrics.key}   # relative to the folder of this file\nbasic_auth_users: {prometheus: \"$2y$10$…\"}                          # htpasswd -nBC 10 prometheus\n```" + `

**Cost.** A scrape of 10 000 lanes takes some 30 ms of one processor, reading the lanes and compressing the answer included. At most four are answered at
once. There are no exemplars.

**Rules and dashboard.** [metrics/rules/egressd.rules.yml](../metrics/rules/egressd.rules.yml) has recording and alert rules, each with a sentence on
what to do; [metrics/dashboard/node-egress.json](../metrics/dashboard/node-egress.json) is the Grafana dashboard "Node egress by exit": import
it, and choose the Prometheus at its top.

| metric | type | labels | unit |
|---|---|---|---|
`

// native are the families that have native buckets, too.
var native = map[string]bool{metrics.NameExitRate: true}

// reference is docs/METRICS.md.
func reference() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, head, metrics.DefaultMaxPairs)
	families := metrics.Families()
	for _, f := range families {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s | %s |\n", f.Name, f.Name, kind(f), labels(f), f.Unit)
	}
	for _, f := range families {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s\n\n```promql\n%s\n```\n", f.Name, f.Help, f.Asks, f.Query)
	}
	return b.Bytes(), nil
}

func kind(f metrics.Family) string {
	if native[f.Name] {
		return string(f.Type) + ", native too"
	}
	return string(f.Type)
}

func labels(f metrics.Family) string {
	if len(f.Labels) == 0 {
		return "–"
	}
	return "`" + strings.Join(f.Labels, "`, `") + "`"
}
