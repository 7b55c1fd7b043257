// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	for _, tc := range []struct {
		name    string
		earlier string
		events  string
		want    string // the whole output
		err     string // "" for a good run
	}{
		{
			name: "good",
			events: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestA/sub"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"m/a","Test":"TestB","Output":"    a_test.go:7: no fq\n"}
{"Action":"output","Package":"m/a","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestB"}
{"Action":"pass","Package":"m/a","Elapsed":1.25}
{"Action":"skip","Package":"m/empty"}
`,
			want: `ok    m/a 1.2s
skip  m/a TestB: a_test.go:7: no fq
2 passed, 0 failed, 1 skipped
`,
		},
		{
			name: "failed test shows its output",
			events: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"fail","Package":"m/a","Elapsed":1}
`,
			want: `got 1, want 2
FAIL  m/a 1.0s
0 passed, 1 failed, 0 skipped
`,
			err: "there were failures",
		},
		{
			name: "package that does not build counts",
			events: `{"Action":"pass","Package":"m/b","Test":"TestB"}
{"Action":"build-output","ImportPath":"m/a [m/a.test]","Output":"a.go:1: no\n"}
{"Action":"build-fail","ImportPath":"m/a [m/a.test]"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a [build failed]\n"}
{"Action":"fail","Package":"m/a","FailedBuild":"m/a [m/a.test]"}
`,
			want: `a.go:1: no
FAIL	m/a [build failed]
FAIL  m/a 0.0s
1 passed, 1 failed, 0 skipped
`,
			err: "there were failures",
		},
		{
			name: "crash leaves a test unfinished",
			events: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"panic: boom\n"}
{"Action":"fail","Package":"m/a"}
`,
			want: `--- UNFINISHED: TestA
panic: boom
FAIL  m/a 0.0s
0 passed, 1 failed, 0 skipped
`,
			err: "there were failures",
		},
		{
			name: "an earlier run counts and is not shown again",
			earlier: `{"Action":"output","Package":"m/a","Test":"TestS","Output":"    a_test.go:7: no fq\n"}
{"Action":"skip","Package":"m/a","Test":"TestS"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Elapsed":1}
`,
			events: `{"Action":"pass","Package":"m/b","Test":"TestB"}
{"Action":"pass","Package":"m/b","Elapsed":2}
`,
			want: `ok    m/b 2.0s
skip  m/a TestS: a_test.go:7: no fq
2 passed, 0 failed, 1 skipped
`,
		},
		{
			name: "a failure of an earlier run is one of the whole",
			earlier: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"fail","Package":"m/a","Elapsed":1}
`,
			events: `{"Action":"pass","Package":"m/b","Test":"TestB"}
{"Action":"pass","Package":"m/b","Elapsed":2}
`,
			want: `ok    m/b 2.0s
1 passed, 1 failed, 0 skipped
`,
			err: "there were failures",
		},
		{
			name: "an earlier run that was cut off",
			earlier: `{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"begun\n"}
`,
			events: `{"Action":"pass","Package":"m/b","Test":"TestB"}
{"Action":"pass","Package":"m/b","Elapsed":2}
`,
			want: `ok    m/b 2.0s
--- UNFINISHED: m/a TestA
begun
1 passed, 1 failed, 0 skipped
`,
			err: "there were failures",
		},
		{
			name:   "no test at all",
			events: "no Go files\n",
			want:   "no Go files\n0 passed, 0 failed, 0 skipped\n",
			err:    "no test ran",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(tc.earlier), strings.NewReader(tc.events), &out)
			if got := out.String(); got != tc.want {
				t.Errorf("output\ngot:\n%s\nwant:\n%s", got, tc.want)
			}
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != tc.err {
				t.Errorf("error: got %q, want %q", got, tc.err)
			}
		})
	}
}
