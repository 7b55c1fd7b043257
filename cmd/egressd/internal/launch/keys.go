// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"slices"
	"strings"

	"github.com/egressd/egressd/userspace/keylog"
)

// LogKeys returns env changed so that programs write their TLS keys to the
// pipe. If it tells them to write to another file already, that is returned
// as own, and env as it is: who set it wants the keys there.
func LogKeys(env []string, pipe string) (changed []string, own string) {
	if path, ok := lookup(env, keylog.Variable); ok && path != "" && path != pipe {
		return env, path
	}
	options, _ := lookup(env, keylog.NodeVariable)
	path, asked := keylog.NodeKeyLog(options)
	if asked && path != pipe {
		return env, path
	}
	if !asked {
		if options != "" {
			options += " "
		}
		options += keylog.NodeOption + "=" + quoteForNode(pipe)
	}
	changed = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == keylog.Variable || name == keylog.NodeVariable
	})
	return append(changed, keylog.Variable+"="+pipe, keylog.NodeVariable+"="+options), ""
}

// lookup returns the value of a variable, the last if it is there twice, since
// that is the one which a command of os/exec gets.
func lookup(env []string, name string) (value string, ok bool) {
	for _, v := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// quoteForNode writes a word of NODE_OPTIONS.
func quoteForNode(word string) string {
	if !strings.ContainsAny(word, " \"\\") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}
