// SPDX-License-Identifier: Apache-2.0

// Command generate writes what is committed of metrics but made by code:
// docs/METRICS.md and the Grafana dashboard.
//
//	go generate ./metrics/...
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/metrics/dashboard"
)

//go:generate go run . -root ../..

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// run writes all files below root.
func run(root string) error {
	for _, f := range files() {
		text, err := f.make()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, f.path), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// file is one that is made.
type file struct {
	path string // from the root of the repository
	make func() ([]byte, error)
}

func files() []file {
	return []file{
		{"docs/METRICS.md", reference},
		{dashboard.File, dashboard.JSON},
	}
}
