// SPDX-License-Identifier: Apache-2.0

// Command bench measures egressd beside its alternatives in one run on
// loopback: the origin directly, HAProxy with a stick-table limit, nginx with
// limit_req, and Go's ReverseProxy with x/time/rate. Rounds are interleaved, so
// that whatever else the machine does meets all of them; medians are reported.
//
//	bench -egressd bin/egressd -out docs/BENCHMARKS.md
//
// It needs root, since egressd loads BPF programs. It attaches them to a
// cgroup of its own, which it removes at the end.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// options are the flags.
type options struct {
	egressd string        // path of the egressd binary
	out     string        // Markdown file whose measured part is replaced; "" prints only
	profile string        // folder for profiles of egressd under load; "" takes none
	rounds  int           // rounds per scenario
	slot    time.Duration // load per subject and round
	bulkMiB int           // size of the download of the TLS comparison
	micro   bool          // run the Go benchmarks, too
	only    parts         // what is measured; empty measures all
}

func main() {
	log.SetFlags(log.Ltime)
	if len(os.Args) == 4 { // a part that runs as a process of its own
		var err error
		switch os.Args[1] {
		case goProxyCommand:
			err = serveGoProxy(os.Args[2], os.Args[3])
		case socketsCommand:
			err = socketsMain(os.Args[2], os.Args[3])
		default:
			err = fmt.Errorf("no part is called %q", os.Args[1])
		}
		if err != nil {
			log.Fatal(err)
		}
		return
	}
	var opts options
	flag.StringVar(&opts.egressd, "egressd", "bin/egressd", "the `binary` to measure; empty measures the others alone")
	flag.StringVar(&opts.out, "out", "", "Markdown `file` whose measured part is replaced")
	flag.StringVar(&opts.profile, "profile", "", "`folder` for profiles of egressd under load")
	flag.IntVar(&opts.rounds, "rounds", 3, "rounds per scenario")
	flag.DurationVar(&opts.slot, "slot", 2*time.Second, "load per subject and round, whole seconds")
	flag.IntVar(&opts.bulkMiB, "bulk", 1024, "`MiB` of the TLS download")
	flag.BoolVar(&opts.micro, "micro", true, "run the Go benchmarks, too")
	flag.Var(&opts.only, "only", "measure only these `parts`, with commas between: load, paced, connect, bulk, hooks, fleet, micro")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts are names of parts of the measurement.
type parts []string

var allParts = parts{"load", "paced", "connect", "bulk", "hooks", "fleet", "micro"}

func (p *parts) String() string { return strings.Join(*p, ",") }

// Set implements flag.Value.
func (p *parts) Set(text string) error {
	*p = strings.Split(text, ",")
	for _, name := range *p {
		if !slices.Contains(allParts, name) {
			return fmt.Errorf("%q is no part of %s", name, &allParts)
		}
	}
	return nil
}

// has says whether the part is to be measured.
func (p *parts) has(name string) bool { return len(*p) == 0 || slices.Contains(*p, name) }

// run starts the servers, measures, and writes the report.
func run(ctx context.Context, opts options) (err error) {
	l, err := newLab(ctx, opts.bulkMiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()

	subjects, err := l.subjects(ctx, opts.egressd)
	if err != nil {
		return err
	}
	r := report{date: time.Now(), machine: describeMachine(ctx), rounds: opts.rounds, slot: opts.slot}
	if opts.only.has("load") {
		for _, sc := range scenarios {
			res, err := measureLoad(ctx, sc, subjects, opts.rounds, opts.slot)
			if err != nil {
				return err
			}
			r.loads = append(r.loads, res)
		}
	}
	if opts.only.has("paced") {
		if r.paced, err = measurePaced(ctx, l, subjects, opts.rounds*4); err != nil {
			return err
		}
	}
	if opts.only.has("connect") {
		if r.connect, err = measureConnect(ctx, l, subjects, opts.rounds); err != nil {
			return err
		}
	}
	if opts.only.has("bulk") {
		if r.bulk, err = measureBulk(ctx, subjects, opts.rounds, opts.bulkMiB); err != nil {
			return err
		}
	}
	if opts.profile != "" {
		if err := profile(ctx, subjects, opts.profile, opts.slot); err != nil {
			return err
		}
	}
	// The servers idle from here on, but the Go benchmarks need no neighbours.
	if err := l.close(); err != nil {
		return err
	}
	// What was measured until a benchmark failed is reported all the same.
	var hooksErr, fleetErr, microErr error
	if opts.micro && opts.only.has("hooks") {
		r.hooks, hooksErr = measureHooks(ctx)
	}
	if opts.micro && opts.only.has("fleet") {
		r.fleet, fleetErr = measureFleet(ctx)
	}
	if opts.micro && opts.only.has("micro") {
		r.micro, microErr = measureMicro(ctx)
	}
	microErr = errors.Join(hooksErr, fleetErr, microErr)

	var text bytes.Buffer
	r.write(&text)
	os.Stdout.Write(text.Bytes())
	if opts.out == "" {
		return microErr
	}
	return errors.Join(replaceMeasured(opts.out, text.Bytes()), microErr)
}
