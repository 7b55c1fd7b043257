// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/template"
)

// The proxies are set up as their own documents advise for this work: as many
// threads as cores, kept connections to the origin, no log. Each has a limit
// that its code checks on every request and that no load here reaches.
var configurations = template.Must(template.New("").Parse(`
{{define "origin"}}
daemon off; worker_processes 1; pid {{.Dir}}/origin.pid; error_log {{.Dir}}/origin.log;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
	server { listen {{.Origin}}; listen {{.Paced}}; default_type text/plain; location / { return 200 "hello, world\n"; } }
	server {
		listen {{.TLS}} ssl; root {{.Dir}}/www; sendfile off; output_buffers 2 128k;
		ssl_certificate {{.Dir}}/cert.pem; ssl_certificate_key {{.Dir}}/key.pem; ssl_buffer_size 16k;
	}
}
{{end}}
{{define "nginx"}}
daemon off; worker_processes auto; pid {{.Dir}}/nginx.pid; error_log {{.Dir}}/nginx.log;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
	limit_req_zone $host zone=lanes:1m rate=1000000r/s;
	upstream origin { server {{.Origin}}; keepalive 64; keepalive_requests 1000000000; keepalive_timeout 1h; }
	server {
		listen {{.Listen}};
		location / {
			limit_req zone=lanes burst=1000000 nodelay; limit_req_status 429;
			proxy_pass http://origin; proxy_http_version 1.1;
			proxy_set_header Connection ""; proxy_set_header Host $host;
		}
	}
}
{{end}}
{{define "haproxy"}}
global
	nbthread {{.Cores}}
defaults
	timeout connect 5s
	timeout client 1h
	timeout server 1h
backend lanes
	stick-table type string len 64 size 1k expire 60s store http_req_rate(1s)
backend peers
	stick-table type ip size 1k expire 60s store conn_rate(1s)
frontend http
	mode http
	bind {{.Listen}}
	http-request track-sc0 hdr(host) table lanes
	http-request deny deny_status 429 if { sc_http_req_rate(0,lanes) gt 1000000000 }
	default_backend origin
backend origin
	mode http
	http-reuse always
	server origin {{.Origin}}
frontend tls
	mode tcp
	option splice-auto
	bind {{.ListenTLS}}
	tcp-request connection track-sc0 src table peers
	tcp-request connection reject if { sc_conn_rate(0,peers) gt 1000000000 }
	default_backend tls
backend tls
	mode tcp
	server origin {{.TLS}}
{{end}}
{{define "connections"}}
  - name: connections
    match: {hosts: ["127.0.0.1/32"], ports: [{{.PacedPort}}, {{.CountedPort}}]}
    unit: connections
    per: [destination]
    rate: 1000000/s
    burst: 1000000
{{- end}}
{{define "plain"}}
scope:
  cgroups: [{{.Cgroup}}]
budgets:
  {{- template "connections" .}}
metrics: {listen: "{{.Metrics}}"}
admin: {socket: {{.Dir}}/plain.sock}
{{end}}
{{define "egressd"}}
scope:
  cgroups: [{{.Cgroup}}]
budgets:
  - name: http
    match: {hosts: ["127.0.0.1"], ports: [{{.OriginPort}}]}
    per: [destination, exit]
    rate: 1000000/s
    burst: 1000000
  - name: bulk
    match: {hosts: ["{{.BulkHost}}"], ports: [{{.TLSPort}}]}
    per: [destination, exit]
    rate: 1000000/s
    burst: 1000000
  - name: observed
    match: {hosts: ["{{.ObservedHost}}"], ports: [{{.TLSPort}}]}
    per: [destination, exit]
    rate: 1000000/s
    burst: 1000000
    tls: {mode: observe}
  {{- template "connections" .}}
tls: {sources: [keylog], key_dir: {{.KeyDir}}}
metrics: {listen: "{{.Metrics}}"}
admin: {socket: {{.Dir}}/egressd.sock}
{{end}}
`))

// settings fill in the configurations.
type settings struct {
	Dir, Origin, TLS, BulkHost string
	OriginPort, TLSPort, Cores int
	Paced                      string
	PacedPort, CountedPort     int
	Listen, ListenTLS, Metrics string
	Cgroup                     string
	ObservedHost, KeyDir       string
}

// settings returns those of the lab, with fresh ports.
func (l *lab) settings() (settings, error) {
	s := settings{
		Dir: l.dir, Origin: l.origin, TLS: l.tls, BulkHost: bulkHost,
		OriginPort: portOf(l.origin), TLSPort: portOf(l.tls), Cores: cores(),
		Paced: l.paced, PacedPort: portOf(l.paced), CountedPort: portOf(l.counted),
		ObservedHost: observedHost,
	}
	for _, addr := range []*string{&s.Listen, &s.ListenTLS, &s.Metrics} {
		var err error
		if *addr, err = freeAddr(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// configure writes a configuration and returns its file.
func (l *lab) configure(name string, s settings) (string, error) {
	file := l.path(name + ".conf")
	err := writeFile(file, func(w io.Writer) error { return configurations.ExecuteTemplate(w, name, s) })
	if err != nil {
		return "", fmt.Errorf("configuring %s: %w", name, err)
	}
	return file, nil
}

func (l *lab) startOrigin(ctx context.Context) error {
	s, err := l.settings()
	if err != nil {
		return err
	}
	file, err := l.configure("origin", s)
	if err != nil {
		return err
	}
	proc, err := l.start("origin", nil, "nginx", "-c", file)
	if err != nil {
		return err
	}
	return proc.waitPort(ctx, l.tls)
}

func (l *lab) startNginx(ctx context.Context) (*subject, error) {
	s, err := l.settings()
	if err != nil {
		return nil, err
	}
	file, err := l.configure("nginx", s)
	if err != nil {
		return nil, err
	}
	proc, err := l.start("nginx", nil, "nginx", "-c", file)
	if err != nil {
		return nil, err
	}
	return &subject{name: nameNginx, http: s.Listen, proc: proc}, proc.waitPort(ctx, s.Listen)
}

func (l *lab) startHAProxy(ctx context.Context) (*subject, error) {
	s, err := l.settings()
	if err != nil {
		return nil, err
	}
	file, err := l.configure("haproxy", s)
	if err != nil {
		return nil, err
	}
	proc, err := l.start("haproxy", nil, "haproxy", "-db", "-f", file)
	if err != nil {
		return nil, err
	}
	return &subject{name: nameHAProxy, http: s.Listen, tls: s.ListenTLS, proc: proc}, proc.waitPort(ctx, s.ListenTLS)
}

func (l *lab) startGoProxy(ctx context.Context) (*subject, error) {
	s, err := l.settings()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	proc, err := l.start("goproxy", nil, self, goProxyCommand, s.Listen, "http://"+l.origin)
	if err != nil {
		return nil, err
	}
	return &subject{name: "Go ReverseProxy + x/time/rate", http: s.Listen, proc: proc}, proc.waitPort(ctx, s.Listen)
}

// Names of the subjects that ratios refer to.
const (
	nameNginx   = "nginx limit_req"
	nameHAProxy = "HAProxy stick-table"
	nameEgressd = "egressd by redirect"
	// nameObserving is the same, reading what passes with the client's keys.
	nameObserving = "egressd, observing"
)
