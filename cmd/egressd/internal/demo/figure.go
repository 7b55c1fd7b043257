// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"image/color"
	"strconv"

	"github.com/egressd/egressd/cmd/egressd/internal/plot"
)

// Figure draws both runs, one above the other: on the left what the origin wrote
// down, on the right what Prometheus made of the metrics, if it was asked.
func (p *Picture) Figure() *plot.Figure {
	f := &plot.Figure{
		Title: fmt.Sprintf("%d workers, one origin that allows %g requests per second", p.Workers, p.Allowed),
		Notes: []string{fmt.Sprintf(
			"Above the limit it answers 429 with Retry-After, at most %d s, and is closed for so long. The workers do as they are told, and all come back at the same moment.", p.RetryFor)},
		Legend: []plot.Key{
			{Name: "served", Colour: plot.Served},
			{Name: "answered with 429", Colour: plot.Limited},
			{Name: "what the origin allows, and the budget", Colour: plot.Allowed, Dashed: true},
		},
		Columns: []plot.Column{{Title: "At the origin, in its own log", Note: "requests received in each second"}},
		Rows: []plot.Row{
			{Title: "Without egressd", Note: "(mode: shadow, which holds nothing)"},
			{Title: "With egressd", Note: fmt.Sprintf("(rate: %g/s; the workers are unchanged)", p.Allowed)},
		},
	}
	if p.Measured.Rate != nil {
		f.Columns = append(f.Columns,
			plot.Column{Title: "In Prometheus: requests per second", Note: RateQuery},
			plot.Column{Title: "In Prometheus: within one second", Note: DistributionQuery},
		)
	}
	for i, r := range []*Run{&p.Measured, &p.Held} {
		f.Rows[i].Note += fmt.Sprintf(": %d served, %d answered with 429, at most %d in any second", r.Requests-r.Limited, r.Limited, r.MaxInAnySecond)
		f.Rows[i].Panels = r.panels(p.Allowed)
	}
	return f
}

func (r *Run) panels(allowed float64) []plot.Panel {
	log := plot.Panel{Mark: allowed, XName: "seconds", YName: "requests"}
	for _, s := range r.Seconds {
		log.Bars = append(log.Bars, plot.Bar{{N: float64(s.Served), Colour: plot.Served}, {N: float64(s.Limited), Colour: plot.Limited}})
	}
	panels := []plot.Panel{log}
	if r.Rate == nil {
		return panels
	}
	line := plot.Line{Colour: plot.Measured}
	for _, s := range r.Rate {
		line.Points = append(line.Points, plot.Point{X: s.At, Y: s.Value})
	}
	rate := plot.Panel{Lines: []plot.Line{line}, Mark: allowed, XMax: float64(len(r.Seconds)), XName: "seconds", YName: "requests per second, exit direct"}
	return append(panels, rate, r.spread(allowed))
}

// mostOfInterest is the bucket after which the picture ends.
const mostOfInterest = 100

// spread is the panel of how many seconds had how many requests.
func (r *Run) spread(allowed float64) plot.Panel {
	p := plot.Panel{XName: "requests in a second, up to", YName: "seconds"}
	for _, b := range r.Distribution {
		most, err := strconv.ParseFloat(b.Most, 64)
		if err != nil || most > mostOfInterest {
			break
		}
		colour := color.RGBA(plot.Served)
		if most > allowed {
			colour = plot.Limited
		}
		p.Bars = append(p.Bars, plot.Bar{{N: b.Seconds, Colour: colour}})
		p.Labels = append(p.Labels, b.Most)
	}
	return p
}
