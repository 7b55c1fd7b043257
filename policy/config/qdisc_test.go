// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestQdisc(t *testing.T) {
	for text, want := range map[string]policy.QdiscMode{
		"quic: allow": policy.QdiscNone, "qdisc: none": policy.QdiscNone, "qdisc: fq": policy.QdiscFQ,
	} {
		p := mustParse(t, text)
		wanted := Default()
		wanted.Qdisc = want
		if !reflect.DeepEqual(p, wanted) {
			t.Errorf("%s: got %+v, want %+v", text, p, wanted)
		}
		told := slices.ContainsFunc(Describe(p), func(line string) bool { return strings.HasPrefix(line, "qdisc: fq is put on") })
		if told != (want == policy.QdiscFQ) {
			t.Errorf("%s: described as %q", text, Describe(p))
		}
	}
	for text, want := range map[string]string{
		"qdisc: fq_codel":                   `file:1: qdisc: must be none or fq, not "fq_codel"`,
		"qdisc: {kind: fq}":                 "file:1: qdisc: must be",
		"qdisc: fq\nqdisc: none":            "file:2: ",
		"budgets: [{qdisc: fq}]":            "file:1: ",
		"qdisc: [fq]":                       "file:1: qdisc: must be",
		"qdisc:":                            "file:1: qdisc: ",
		"qdisc: true":                       "file:1: qdisc: must be",
		"metrics: {listen: off}\nqdisc: FQ": `file:2: qdisc: must be none or fq, not "FQ"`,
	} {
		if _, err := Parse("file", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
