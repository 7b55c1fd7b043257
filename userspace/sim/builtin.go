// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

//go:embed workloads/articles/*.yml
var files embed.FS

const (
	builtinDir = "workloads"
	builtinExt = ".yml"
)

// Builtins are the names of the built-in workloads, in order.
func Builtins() []string {
	// The pattern is a constant and is well-formed.
	paths, _ := fs.Glob(files, builtinDir+"/*/*"+builtinExt)
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(p, builtinDir+"/"), builtinExt)
	}
	return names
}

// BuiltinText is the file of a built-in workload; false if there is none of
// that name.
func BuiltinText(name string) ([]byte, bool) {
	text, err := files.ReadFile(path.Join(builtinDir, name+builtinExt))
	return text, err == nil
}
