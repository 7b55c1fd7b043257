// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/plot"
)

// writePicture writes a figure that takes a while to make into a file. That the
// file cannot be written shows before that, and what was there before stays until
// the picture is whole.
func writePicture(name string, figure func() (*plot.Figure, error)) (err error) {
	out, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	f, err := figure()
	if err == nil {
		err = f.WritePNG(out)
	}
	if err := errors.Join(err, out.Chmod(0o644), out.Close()); err != nil {
		return err
	}
	return os.Rename(out.Name(), name)
}
