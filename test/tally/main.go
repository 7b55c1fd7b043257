// SPDX-License-Identifier: Apache-2.0

// Command tally reads the output of `go test -json` and prints it for people:
// one line per package, the output of what failed, why tests were skipped,
// and a last line with the count.
//
//	go test -race -json ./... | tally [FILE ...]
//
// The last lines are also about the events in the files, which are those of earlier
// runs: tests that run in several parts have one count.
//
// It exits 1 if anything failed, a package that does not build included, or if
// no test ran at all.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := tallyAfter(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
}

// tallyAfter tallies the standard input, after what is in the files.
func tallyAfter(names []string) error {
	var earlier []io.Reader
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		earlier = append(earlier, f)
	}
	return run(io.MultiReader(earlier...), os.Stdin, os.Stdout)
}

// run tallies in to out. What is in earlier counts, but was shown before. The
// error says why the run as a whole is not good.
func run(earlier, in io.Reader, out io.Writer) error {
	w := bufio.NewWriter(out)
	defer w.Flush()
	t := newTally(bufio.NewWriter(io.Discard))
	if err := t.read(earlier); err != nil {
		return fmt.Errorf("earlier run: %w", err)
	}
	t.out = w
	if err := t.read(in); err != nil {
		return err
	}
	return t.finish()
}
