// SPDX-License-Identifier: Apache-2.0

package table

import (
	"strings"
	"testing"
)

var columns = []Column{{Title: "LANE", Flex: true}, {Title: "RATE", Right: true}, {Title: "STATE"}}

func TestWrite(t *testing.T) {
	for _, tt := range []struct {
		name  string
		width int
		rows  [][]string
		want  string
	}{
		{"empty", 80, nil, "LANE  RATE  STATE\n"},
		{"aligned", 80, [][]string{{"store", "1/s", "open"}, {"b", "0.5/s", "closed 3s"}},
			"LANE    RATE  STATE\n" +
				"store    1/s  open\n" +
				"b      0.5/s  closed 3s\n"},
		{"cut to the width", 26, [][]string{{"a-very-long-host.example", "1/s", "open"}},
			"LANE           RATE  STATE\n" +
				"a-very-long-…   1/s  open\n"},
		{"never cut to nothing", 5, [][]string{{"a-very-long-host.example", "1/s", "open"}},
			"LANE      RATE  STATE\n" +
				"a-very-…   1/s  open\n"},
		{"no bound", 0, [][]string{{strings.Repeat("x", 100), "1/s", "open"}},
			"LANE" + strings.Repeat(" ", 98) + "RATE  STATE\n" +
				strings.Repeat("x", 100) + "   1/s  open\n"},
		{"characters, not bytes", 80, [][]string{{"süßé", "1", "a"}, {"abcd", "1", "b"}},
			"LANE  RATE  STATE\nsüßé     1  a\nabcd     1  b\n"},
		{"no terminal commands", 80, [][]string{{"a\x1b[2J\n", "1", "b\u009b"}},
			"LANE    RATE  STATE\na?[2J?     1  b?\n"},
	} {
		var out strings.Builder
		if err := Write(&out, tt.width, columns, tt.rows); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}
