// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
)

// Colours of what is drawn. They differ in lightness, too, for those who do not
// see all hues.
var (
	Served   = color.RGBA{0x4c, 0x8f, 0xd6, 0xff} // what was let through
	Limited  = color.RGBA{0xc6, 0x28, 0x28, 0xff} // what an origin limited
	Failed   = color.RGBA{0x8a, 0x8a, 0x8a, 0xff} // what failed for another reason
	Measured = color.RGBA{0x1f, 0x5f, 0xa8, 0xff} // a line
	Allowed  = color.RGBA{0x2b, 0x2b, 0x2b, 0xff} // the mark of a limit

	ground = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink    = color.RGBA{0x1c, 0x21, 0x28, 0xff}
	quiet  = color.RGBA{0x5c, 0x66, 0x70, 0xff}
	grid   = color.RGBA{0xe4, 0xe8, 0xec, 0xff}
	axis   = color.RGBA{0x9a, 0xa4, 0xae, 0xff}
)

// Figure is a picture.
type Figure struct {
	Title  string
	Notes  []string // below the title
	Legend []Key
	// Columns are the titles of what stands one above the other, each with a line
	// in small letters below it. There may be none.
	Columns []Column
	Rows    []Row
	Width   int // pixels; 0 means 1800
}

// Column is what panels one above the other have in common.
type Column struct {
	Title string
	Note  string
	Part  float64 // of the width, against those of the others; 0 means 1
}

// Key is an entry of the legend.
type Key struct {
	Name   string
	Colour color.RGBA
	Dashed bool // a line, not an area
}

// Row is panels side by side.
type Row struct {
	Title  string
	Note   string
	Panels []Panel // one for each column
	Height int     // of the panels, in pixels; 0 means 250
}

// Panel is one chart: bars from the left to the right, and lines above them.
type Panel struct {
	Bars   []Bar
	Labels []string // below the bars, instead of numbers; as many as bars
	Lines  []Line
	// XMax is the number at the right end; that on the left is 0. 0 means the
	// number of bars.
	XMax  float64
	XName string
	YName string
	Mark  float64 // a dashed line across; 0: none
}

// Bar is parts one upon the other.
type Bar []Part

// Part is a number of something, of which all bars have one colour.
type Part struct {
	N      float64
	Colour color.RGBA
}

// Line is points from the left to the right.
type Line struct {
	Points []Point
	Colour color.RGBA
}

// Point is a place in a panel.
type Point struct{ X, Y float64 }

// Sizes in pixels.
const (
	defaultWidth  = 1800
	defaultHeight = 250
	margin        = 44
	gutter        = 56 // between columns
	labels        = 58 // left of a panel, for its numbers
	below         = 58 // a panel, for its numbers and their name
	heading       = 66 // above a panel, for the title of the row and what its numbers are
)

// maxSide bounds a picture.
const maxSide = 16_000

// WritePNG draws the figure. An error is that of w, or of a figure that cannot be
// drawn.
func (f *Figure) WritePNG(w io.Writer) error {
	img, err := f.draw()
	if err != nil {
		return err
	}
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(w, reduced(img)); err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// draw lays the figure out from top to bottom.
func (f *Figure) draw() (*image.RGBA, error) {
	width := f.Width
	if width == 0 {
		width = defaultWidth
	}
	columns := len(f.Columns)
	for _, r := range f.Rows {
		columns = max(columns, len(r.Panels))
	}
	height := f.height()
	if columns == 0 || width < 200*columns || width > maxSide || height > maxSide {
		return nil, fmt.Errorf("a picture of %d columns, %d by %d pixels, cannot be drawn", columns, width, height)
	}
	p, err := newPainter(width, height)
	if err != nil {
		return nil, err
	}
	y := margin
	p.text(margin, y+34, f.Title, p.faces.title, ink)
	y += 46
	for _, note := range f.Notes {
		p.text(margin, y+22, note, p.faces.text, quiet)
		y += 30
	}
	y = f.legend(p, y)
	spans := f.spans(columns, width)
	if len(f.Columns) > 0 {
		for i, c := range f.Columns {
			p.text(spans[i].from, y+24, c.Title, p.faces.strong, ink)
			p.fit(spans[i].from, y+48, c.Note, p.faces.mono, quiet, spans[i].to-spans[i].from)
		}
		y += 60
	}
	tops := f.tops(columns)
	for _, r := range f.Rows {
		y += 14
		x := p.text(margin, y+24, r.Title, p.faces.strong, ink)
		p.text(x+14, y+24, r.Note, p.faces.text, quiet)
		y += heading
		for i := range r.Panels {
			box := image.Rect(spans[i].from+labels, y, spans[i].to, y+r.height())
			p.panel(&r.Panels[i], box, tops[i])
		}
		y += r.height() + below
	}
	return p.img, nil
}

func (r *Row) height() int {
	if r.Height > 0 {
		return r.Height
	}
	return defaultHeight
}

func (f *Figure) height() int {
	y := 2*margin + 46 + 30*len(f.Notes)
	if len(f.Legend) > 0 {
		y += 40
	}
	if len(f.Columns) > 0 {
		y += 60
	}
	for i := range f.Rows {
		y += 14 + heading + f.Rows[i].height() + below
	}
	return y - margin/2
}

func (f *Figure) legend(p *painter, y int) int {
	if len(f.Legend) == 0 {
		return y
	}
	x := margin
	for _, k := range f.Legend {
		if k.Dashed {
			p.dashes(float64(x), float64(x+34), float64(y+19), k.Colour)
			x += 44
		} else {
			p.rect(float64(x), float64(y+10), float64(x+18), float64(y+28), k.Colour)
			x += 28
		}
		x = p.text(x, y+26, k.Name, p.faces.text, ink) + 34
	}
	return y + 40
}

// stretch is from where to where a column goes.
type stretch struct{ from, to int }

func (f *Figure) spans(columns, width int) []stretch {
	parts, sum := make([]float64, columns), 0.0
	for i := range parts {
		parts[i] = 1
		if i < len(f.Columns) && f.Columns[i].Part > 0 {
			parts[i] = f.Columns[i].Part
		}
		sum += parts[i]
	}
	room := float64(width - 2*margin - gutter*(columns-1))
	out, x := make([]stretch, columns), float64(margin)
	for i, part := range parts {
		wide := room * part / sum
		out[i] = stretch{int(x), int(x + wide)}
		x += wide + gutter
	}
	return out
}

// tops are what the upper ends of the panels stand for, by column.
func (f *Figure) tops(columns int) []float64 {
	tops := make([]float64, columns)
	for _, r := range f.Rows {
		for i := range r.Panels {
			tops[i] = max(tops[i], r.Panels[i].top())
		}
	}
	for i, top := range tops {
		step := nice(top * 1.08 / 4)
		tops[i] = step * math.Ceil(top*1.02/step)
	}
	return tops
}

func (p *Panel) top() float64 {
	top := p.Mark
	for _, bar := range p.Bars {
		sum := 0.0
		for _, part := range bar {
			sum += part.N
		}
		top = max(top, sum)
	}
	for _, l := range p.Lines {
		for _, point := range l.Points {
			top = max(top, point.Y)
		}
	}
	return top
}

// nice is the least of 1, 2 and 5 times a power of ten that is no less than x; 1
// where that is nothing.
func nice(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 0) {
		return 1
	}
	scale := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 5} {
		if m*scale >= x*(1-1e-9) {
			return m * scale
		}
	}
	return 10 * scale
}

func newImage(width, height int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	draw.Draw(img, img.Bounds(), image.NewUniform(ground), image.Point{}, draw.Src)
	return img
}
