// SPDX-License-Identifier: Apache-2.0

package top

import "strings"

// sequencesOfKeys are what terminals send for keys that do something. Arrows
// come in two ways, by the mode that the terminal is in (DECCKM).
var sequencesOfKeys = []struct {
	text string
	key  key
}{
	{"\x1b[A", keyUp}, {"\x1bOA", keyUp}, {"k", keyUp},
	{"\x1b[B", keyDown}, {"\x1bOB", keyDown}, {"j", keyDown},
	{"\x1b[C", keyRight}, {"\x1bOC", keyRight}, {"l", keyRight}, {"s", keyRight}, {"\t", keyRight},
	{"\x1b[D", keyLeft}, {"\x1bOD", keyLeft}, {"h", keyLeft},
	{"\x1b[5~", keyPageUp}, {"\x1b[6~", keyPageDown}, {" ", keyPageDown},
	{"\x1b[H", keyHome}, {"\x1bOH", keyHome}, {"\x1b[1~", keyHome}, {"g", keyHome},
	{"q", keyQuit}, {"Q", keyQuit}, {"r", keyReverse}, {"p", keyPause},
}

// decode reads the keys at the beginning of what a terminal sent, and returns
// what may be the beginning of one that is not complete.
func decode(text string) (keys []key, rest string) {
next:
	for text != "" {
		for _, s := range sequencesOfKeys {
			if after, is := strings.CutPrefix(text, s.text); is {
				keys, text = append(keys, s.key), after
				continue next
			}
		}
		n := unknown(text)
		if n == 0 {
			return keys, text
		}
		text = text[n:]
	}
	return keys, ""
}

// longest bounds a sequence that is waited for.
const longest = 16

// unknown is the length of what stands at the beginning and is no key of ours;
// 0 if it is not complete. Sequences are those of ECMA-48, section 5.4: ESC [,
// parameters, and a final byte from @ to ~.
func unknown(text string) int {
	if text[0] != '\x1b' {
		return 1
	}
	switch {
	case len(text) == 1:
		return 0
	case text[1] == 'O':
		if len(text) == 2 {
			return 0
		}
		return 3
	case text[1] != '[':
		return 1
	}
	for i := 2; i < len(text); i++ {
		if text[i] >= '@' && text[i] <= '~' {
			return i + 1
		}
		if text[i] < ' ' || i == longest {
			return i
		}
	}
	return 0
}
