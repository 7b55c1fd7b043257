// SPDX-License-Identifier: Apache-2.0

// Package dashboard makes the Grafana dashboard "Node egress by exit", for
// Grafana 10 or later over Prometheus.
//
// What the dashboard shows is the table Rows; Build draws it. Nothing of this
// is part of the daemon: the result is committed as node-egress.json, which
// Grafana imports, and `go generate ./metrics/...` rewrites it.
package dashboard
