// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// version is set by the linker for releases.
var version = ""

// versionInfo is what version prints.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	Kernel  string `json:"kernel"`
}

// readVersion asks the binary and the kernel.
func readVersion() versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), Kernel: "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		dirty := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				dirty = s.Value == "true"
			}
		}
		if v.Commit != "" && dirty {
			v.Commit += " (modified)"
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil {
		v.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	return v
}

func newVersionCommand(e *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the version of egressd and of what it runs on",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			v := readVersion()
			if asJSON {
				return e.printJSON(v)
			}
			commit := v.Commit
			if commit == "" {
				commit = "unknown"
			}
			_, err := fmt.Fprintf(e.stdout, "egressd %s\ncommit  %s\ngo      %s\nkernel  %s\n", v.Version, commit, v.Go, v.Kernel)
			return err
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
