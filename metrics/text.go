// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// The text format, version 0.0.4, as github.com/prometheus/common/expfmt
// writes it: a test compares both, byte by byte. Here the part of a line
// before its value is made once for each series, which is most of the work.

// chunk is how much text is gathered before it is written.
const chunk = 32 << 10

// writeText writes f to w, by way of buf, and returns what buf has become and the
// first error of w.
func (f *framed) writeText(w io.Writer, buf []byte) ([]byte, error) {
	buf = append(buf, f.head...)
	for i, s := range f.series {
		if f.Type == Histogram {
			buf = f.sums[i].appendText(buf)
		} else {
			buf = append(buf, s.text...)
			buf = append(appendFloat(buf, f.values[i]), '\n')
		}
		if len(buf) < chunk {
			continue
		}
		if _, err := w.Write(buf); err != nil {
			return buf[:0], err
		}
		buf = buf[:0]
	}
	return buf, nil
}

func (h *histogram) appendText(buf []byte) []byte {
	below := uint64(0)
	for i, n := range h.Counts {
		below += n
		buf = append(buf, h.layout.buckets[i]...)
		buf = append(appendFloat(buf, float64(below)), '\n')
	}
	buf = append(buf, h.layout.sum...)
	buf = append(appendFloat(buf, h.Sum), '\n')
	buf = append(buf, h.layout.count...)
	return append(appendFloat(buf, float64(below)), '\n')
}

// layout is what the lines of a histogram begin with. It does not change.
type layout struct {
	bounds     []float64
	buckets    []string // that of the infinite one is the last
	sum, count string
}

func newLayout(name string, labels []*dto.LabelPair, bounds []float64) *layout {
	l := &layout{
		bounds: append([]float64{}, bounds...),
		sum:    prefix(name+"_sum", labels, ""),
		count:  prefix(name+"_count", labels, ""),
	}
	for _, b := range append(slices.Clone(bounds), math.Inf(1)) {
		l.buckets = append(l.buckets, prefix(name+"_bucket", labels, string(appendFloat(nil, b))))
	}
	return l
}

// prefix is the beginning of a line: a name and its labels, the label le after
// them unless it is empty, and a space.
func prefix(name string, labels []*dto.LabelPair, le string) string {
	var b strings.Builder
	b.WriteString(name)
	between := byte('{')
	label := func(name, value string) {
		b.WriteByte(between)
		b.WriteString(name)
		b.WriteString(`="`)
		b.WriteString(value)
		b.WriteByte('"')
		between = ','
	}
	for _, l := range labels {
		label(l.GetName(), escapeLabel.Replace(l.GetValue()))
	}
	if le != "" {
		label("le", le)
	}
	if between == ',' {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	return b.String()
}

// head is what stands before the lines of a family.
func head(f Family) string {
	return "# HELP " + f.Name + " " + escapeHelp.Replace(f.Help) + "\n# TYPE " + f.Name + " " + string(f.Type) + "\n"
}

var (
	escapeLabel = strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`)
	escapeHelp  = strings.NewReplacer("\\", `\\`, "\n", `\n`)
)

// appendFloat appends v as the formats write numbers.
func appendFloat(buf []byte, v float64) []byte {
	// Most are counts. From a million on they are written with an exponent.
	if n := int32(v); float64(n) == v && n > -1e6 && n < 1e6 {
		return strconv.AppendInt(buf, int64(n), 10)
	}
	switch {
	case math.IsNaN(v):
		return append(buf, "NaN"...)
	case math.IsInf(v, 1):
		return append(buf, "+Inf"...)
	case math.IsInf(v, -1):
		return append(buf, "-Inf"...)
	}
	return strconv.AppendFloat(buf, v, 'g', -1, 64)
}
