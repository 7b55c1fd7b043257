// SPDX-License-Identifier: Apache-2.0

// Command vm runs tests that need root on kernels that this machine does not
// run: it boots each kernel of kernels.txt in QEMU, with the packages of tests.txt as
// static binaries in its first root file system, and counts what comes back
// against what it packed.
//
//	vm [-root DIR] [-keep DIR] [LABEL ...]
//
// A kernel is good if it boots, reports every test that was packed, none as
// failed, complains of nothing on its console and powers off by itself. The exit
// status is 1 if one is not.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/egressd/egressd/test/vm/frame"
)

func main() {
	root := flag.String("root", ".", "`folder` of the repository")
	keep := flag.String("keep", "", "`folder` for consoles and binaries; a temporary one by default")
	tests := flag.String("tests", "", "`file` with the list of tests; test/vm/tests.txt by default")
	flag.Parse()
	good, err := run(os.Stdout, *root, *keep, *tests, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	if err != nil || !good {
		os.Exit(1)
	}
}

// run tests the kernels with these labels, or all.
func run(out io.Writer, root, dir, tests string, labels []string) (good bool, err error) {
	if root, err = filepath.Abs(root); err != nil {
		return false, err
	}
	here := filepath.Join(root, "test", "vm")
	if tests == "" {
		tests = filepath.Join(here, "tests.txt")
	}
	kernels, err := readList(filepath.Join(here, "kernels.txt"), parseKernels)
	if err != nil {
		return false, err
	}
	if kernels, err = choose(kernels, labels); err != nil {
		return false, err
	}
	suites, err := readList(tests, parseSuites)
	if err != nil {
		return false, err
	}
	if dir == "" {
		// Not /tmp, which may be memory: this is a few hundred MiB.
		if dir, err = os.MkdirTemp("/var/tmp", "egressd-vm-"); err != nil {
			return false, err
		}
		defer os.RemoveAll(dir)
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	c, err := buildCargo(root, dir, suites)
	if err != nil {
		return false, err
	}
	good = true
	var results []*result
	for _, k := range kernels {
		f, err := k.fetch(filepath.Join(here, "fetch.sh"))
		if err != nil {
			return false, err
		}
		r, err := c.test(out, dir, f)
		if err != nil {
			return false, fmt.Errorf("kernel %s: %w", k.label, err)
		}
		r.describe(out)
		results = append(results, r)
		good = good && r.good()
	}
	fmt.Fprintln(out)
	if err := table(out, results); err != nil {
		return false, err
	}
	return good, nil
}

func readList[T any](path string, parse func(string) ([]T, error)) ([]T, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// test boots one kernel with everything and judges what it tells. The error is
// of this machine, not of the kernel's.
func (c cargo) test(out io.Writer, dir string, k fetched) (*result, error) {
	m := machine{
		kernel:    k,
		initramfs: filepath.Join(dir, "initramfs-"+k.label),
		console:   filepath.Join(dir, "console-"+k.label),
		limit:     bootTime,
	}
	if err := c.pack(m.initramfs, k); err != nil {
		return nil, err
	}
	for _, s := range c.suites {
		m.limit += s.timeout + 2*limitGrace
	}
	fmt.Fprintf(out, "%s: booting %s\n", k.label, k.release)
	transcript, err := os.Create(filepath.Join(dir, "output-"+k.label))
	if err != nil {
		return nil, err
	}
	defer transcript.Close()
	r := newResult(k.label, c.suites)
	begin := time.Now()
	cpu, err := m.boot(func(f frame.Frame) {
		switch f.Kind {
		case frame.Boot:
			fmt.Fprintf(out, "%s: init runs after %.1f s\n", k.label, time.Since(begin).Seconds())
		case frame.End:
			fmt.Fprintf(out, "%s: %s took %.1f s\n", k.label, f.Run, f.Elapsed.Seconds())
		}
		r.add(f)
		if f.Kind == frame.Output { // all of it, for people, when something is odd
			fmt.Fprint(transcript, f.Text)
		}
	})
	r.elapsed, r.cpu = time.Since(begin), cpu
	if err := r.close(err); err != nil {
		return nil, err
	}
	if r.release != "" && r.release != k.release {
		r.faults = append(r.faults, fmt.Sprintf("it says that it is %s, not %s", r.release, k.release))
	}
	console, err := os.Open(m.console)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	said, err := complaints(console)
	if err != nil {
		return nil, err
	}
	for _, line := range said {
		r.faults = append(r.faults, "the kernel says: "+line)
	}
	return r, nil
}
