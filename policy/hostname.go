// SPDX-License-Identifier: Apache-2.0

package policy

import "strings"

// IsHostName reports whether a name in lower case can be that of a host, as it
// is looked up: labels of letters, digits, dashes and underscores, and a last
// one that is no number, which would make it a misspelt address.
func IsHostName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	number := false // of the last label so far
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		number = true
		for i := range len(label) {
			switch c := label[i]; {
			case '0' <= c && c <= '9':
			case 'a' <= c && c <= 'z', c == '-', c == '_':
				number = false
			default:
				return false
			}
		}
	}
	return !number
}
