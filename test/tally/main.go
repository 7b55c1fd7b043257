// SPDX-License-Identifier: Apache-2.0

// Command tally reads the output of `go test -json` and prints it for people:
// one line per package, the output of what failed, why tests were skipped,
// and a last line with the count.
//
//	go test -race -json ./... | tally
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
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
}

// run tallies in to out. The error says why the run as a whole is not good.
func run(in io.Reader, out io.Writer) error {
	w := bufio.NewWriter(out)
	defer w.Flush()
	t := newTally(w)
	if err := t.read(in); err != nil {
		return err
	}
	return t.finish()
}
