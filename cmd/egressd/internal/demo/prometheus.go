// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How often Prometheus looks, and what it is asked. The first query is that of the
// dashboard's panel of requests per second and exit, with a range as short as
// Grafana would choose for so many looks; the second is what its panels of
// requests within one second are made of.
const (
	scrapeEvery       = 100 * time.Millisecond
	rateStep          = 250 * time.Millisecond
	RateQuery         = `sum by (exit) (rate(egressd_requests_total[1s]))`
	DistributionQuery = `sum by (le) (egressd_exit_requests_per_second_bucket)`
)

// prometheus is a real one that scrapes one daemon.
type prometheus struct {
	cmd   *exec.Cmd
	dir   string
	base  string
	ended chan error
}

// startPrometheus starts it and waits until it has scraped metrics. The caller
// calls stop.
func (d *Demo) startPrometheus(ctx context.Context, metrics string) (_ *prometheus, err error) {
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p := &prometheus{base: "http://" + listen, ended: make(chan error, 1)}
	if p.dir, err = os.MkdirTemp("", "egressd-demo-"); err != nil {
		return nil, fmt.Errorf("start prometheus: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start prometheus: %w", err), p.stop())
		}
	}()
	config := filepath.Join(p.dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: %v, scrape_timeout: %v}\nscrape_configs:\n  - {job_name: egressd, static_configs: [{targets: [%q]}]}\n",
		scrapeEvery, scrapeEvery, metrics)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p.cmd = exec.Command(d.Prometheus, "--config.file", config, "--storage.tsdb.path", filepath.Join(p.dir, "data"),
		"--web.listen-address", listen, "--log.level", "error")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us alone
	p.cmd.Stderr = d.Stderr
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return nil, err
	}
	go func() { p.ended <- p.cmd.Wait() }()
	const patience = 30 * time.Second
	for end := time.Now().Add(patience); ; {
		if got, err := p.query(ctx, "query", url.Values{"query": {`up == 1`}}); err == nil && len(got) > 0 {
			return p, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-p.ended:
			p.ended <- nil // for stop
			return nil, fmt.Errorf("it ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("it has scraped nothing after %v", patience)
		}
	}
}

// stop ends it and takes its data away.
func (p *prometheus) stop() error {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // its data goes, too
		<-p.ended
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("remove the data of prometheus: %w", err)
	}
	return nil
}

// series is one of an answer: a value at one instant, or at several.
type series struct {
	Metric map[string]string
	Value  instant
	Values []instant
}

// instant is a value at a Unix time.
type instant struct {
	at    float64
	value float64
}

// UnmarshalJSON reads [time, "value"].
func (i *instant) UnmarshalJSON(text []byte) error {
	var pair [2]json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	var value string
	if err := errors.Join(json.Unmarshal(pair[0], &i.at), json.Unmarshal(pair[1], &value)); err != nil {
		return err
	}
	var err error
	i.value, err = strconv.ParseFloat(value, 64)
	return err
}

// query asks one of the two endpoints for queries.
func (p *prometheus) query(ctx context.Context, endpoint string, values url.Values) ([]series, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"/api/v1/"+endpoint+"?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []series }
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("read answer of prometheus: %w", err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("prometheus: %s", answer.Error)
	}
	return answer.Data.Result, nil
}

// epoch is an instant as the API takes it.
func epoch(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', 3, 64) }

// rate is what RateQuery gives from begin on, of all exits together.
func (p *prometheus) rate(ctx context.Context, begin time.Time, span time.Duration) ([]Sample, error) {
	all, err := p.query(ctx, "query_range", url.Values{
		"query": {RateQuery}, "start": {epoch(begin)}, "end": {epoch(begin.Add(span))}, "step": {strconv.FormatFloat(rateStep.Seconds(), 'f', -1, 64)},
	})
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("%s: prometheus has %d series, want that of one exit", RateQuery, len(all))
	}
	var out []Sample
	for _, v := range all[0].Values {
		out = append(out, Sample{At: v.at - float64(begin.UnixMilli())/1e3, Value: v.value})
	}
	return out, nil
}

// distribution is what DistributionQuery gives at an instant: how many seconds had
// how many requests.
func (p *prometheus) distribution(ctx context.Context, at time.Time) ([]Bucket, error) {
	all, err := p.query(ctx, "query", url.Values{"query": {DistributionQuery}, "time": {epoch(at)}})
	if err != nil {
		return nil, err
	}
	type edge struct {
		le    string
		bound float64
		n     float64
	}
	var edges []edge
	for _, s := range all {
		bound, err := strconv.ParseFloat(strings.TrimPrefix(s.Metric["le"], "+"), 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", DistributionQuery, err)
		}
		edges = append(edges, edge{s.Metric["le"], bound, s.Value.value})
	}
	if len(edges) == 0 {
		return nil, fmt.Errorf("%s: prometheus has nothing", DistributionQuery)
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.bound, b.bound) })
	var out []Bucket
	before := 0.0
	for _, e := range edges {
		out = append(out, Bucket{Most: strings.TrimSuffix(e.le, ".0"), Seconds: e.n - before})
		before = e.n
	}
	return out, nil
}
