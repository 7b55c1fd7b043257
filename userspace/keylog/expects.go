// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"bytes"
	"path/filepath"
	"strings"
)

// Names of what tells programs to write their keys.
const (
	Variable     = "SSLKEYLOGFILE" // most programs
	NodeVariable = "NODE_OPTIONS"  // Node, which does not look at Variable
	NodeOption   = "--tls-keylog"
	chromeOption = "--ssl-key-log-file" // Chromium
)

// Expects reports whether a process with this environment and command line, as
// /proc/PID/environ and /proc/PID/cmdline give them, was told to write its keys
// to a pipe in dir. Whether it does is another matter: programs in Go and Java
// know none of the ways.
func Expects(environ, cmdline []byte, dir string) bool {
	path, ok := Asked(environ, cmdline)
	return ok && filepath.Dir(path) == filepath.Clean(dir)
}

// Asked returns the file that a process with this environment and command line
// was told to write its keys to.
func Asked(environ, cmdline []byte) (path string, ok bool) {
	args := bytes.Split(bytes.TrimSuffix(cmdline, []byte{0}), []byte{0})
	program := filepath.Base(string(args[0]))
	node := isNode(program)
	for i, arg := range args {
		if i == 0 {
			continue
		}
		if node && !bytes.HasPrefix(arg, []byte("-")) {
			break // the script; what follows is for it
		}
		option := chromeOption
		if node {
			option = NodeOption
		}
		if value, ok := bytes.CutPrefix(arg, []byte(option+"=")); ok {
			return found(string(value))
		}
		if node && string(arg) == option && i+1 < len(args) {
			return found(string(args[i+1]))
		}
	}
	if node {
		path, ok := NodeKeyLog(variable(environ, NodeVariable))
		if !ok {
			return "", false
		}
		return found(path)
	}
	if strings.HasPrefix(program, "python") && ignoresEnvironment(args[1:]) {
		return "", false
	}
	return found(variable(environ, Variable))
}

// found is a path that a program was given.
func found(path string) (string, bool) { return path, path != "" }

// isNode reports whether the program takes NODE_OPTIONS alone.
func isNode(program string) bool {
	return program == "node" || program == "nodejs" || strings.HasPrefix(program, "node-")
}

// variable returns the value of a variable, the first if it is there twice, as
// getenv does.
func variable(environ []byte, name string) string {
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// ignoresEnvironment reports whether Python was started with -E or -I, so that
// it does not look at SSLKEYLOGFILE.
func ignoresEnvironment(args [][]byte) bool {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' || arg[1] == '-' {
			return false // the script
		}
		for at, c := range arg[1:] {
			switch c {
			case 'E', 'I':
				return true
			case 'c', 'm':
				return false // what follows is the program's
			case 'W', 'X':
				if at+2 == len(arg) {
					i++ // its value is the next argument
				}
			default:
				continue
			}
			break
		}
	}
	return false
}

// NodeKeyLog returns the value of the last --tls-keylog among the options of
// Node in NODE_OPTIONS.
func NodeKeyLog(options string) (path string, ok bool) {
	words := nodeWords(options)
	for i, w := range words {
		if value, has := strings.CutPrefix(w, NodeOption+"="); has {
			path, ok = value, true
		} else if w == NodeOption && i+1 < len(words) {
			path, ok = words[i+1], true
		}
	}
	return path, ok
}

// nodeWords splits NODE_OPTIONS as Node does: at spaces, but for what stands in
// double quotes, within which a backslash takes the next character as it is.
func nodeWords(options string) []string {
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for i := 0; i < len(options); i++ {
		c := options[i]
		switch {
		case quoted && c == '\\' && i+1 < len(options):
			i++
			word.WriteByte(options[i])
			continue
		case c == '"':
			quoted = !quoted
			begun = true
			continue
		case c == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
			continue
		}
		word.WriteByte(c)
		begun = true
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}
