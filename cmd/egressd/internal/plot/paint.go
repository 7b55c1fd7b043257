// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"fmt"
	"image"
	"image/color"
	"math"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gomedium"
	"golang.org/x/image/font/gofont/gomono"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// painter draws on a picture. Coordinates are pixels from its upper left corner.
type painter struct {
	img   *image.RGBA
	faces faces
}

// faces are the letters of the sizes that are used.
type faces struct{ title, strong, text, small, mono font.Face }

func newPainter(width, height int) (*painter, error) {
	p := &painter{img: newImage(width, height)}
	for _, f := range []struct {
		face *font.Face
		ttf  []byte
		size float64
	}{
		{&p.faces.title, gomedium.TTF, 34},
		{&p.faces.strong, gomedium.TTF, 23},
		{&p.faces.text, goregular.TTF, 21},
		{&p.faces.small, goregular.TTF, 17},
		{&p.faces.mono, gomono.TTF, 14},
	} {
		parsed, err := opentype.Parse(f.ttf)
		if err != nil {
			return nil, fmt.Errorf("read font: %w", err)
		}
		// At 72 dots per inch a point is a pixel.
		if *f.face, err = opentype.NewFace(parsed, &opentype.FaceOptions{Size: f.size, DPI: 72, Hinting: font.HintingNone}); err != nil {
			return nil, fmt.Errorf("read font: %w", err)
		}
	}
	return p, nil
}

// text writes on the line y and returns where it ends.
func (p *painter) text(x, y int, s string, face font.Face, c color.RGBA) int {
	d := font.Drawer{Dst: p.img, Src: image.NewUniform(c), Face: face, Dot: fixed.P(x, y)}
	d.DrawString(s)
	return d.Dot.X.Ceil()
}

// right writes text that ends at x, and centre text whose middle is there.
func (p *painter) right(x, y int, s string, face font.Face, c color.RGBA) {
	p.text(x-font.MeasureString(face, s).Ceil(), y, s, face, c)
}

func (p *painter) centre(x, y int, s string, face font.Face, c color.RGBA) {
	p.text(x-font.MeasureString(face, s).Ceil()/2, y, s, face, c)
}

// fit writes text that is cut where it would be wider.
func (p *painter) fit(x, y int, s string, face font.Face, c color.RGBA, wide int) {
	for font.MeasureString(face, s).Ceil() > wide && s != "" {
		runes := []rune(strings.TrimSuffix(s, "…"))
		s = string(runes[:len(runes)-1]) + "…"
		if len(runes) == 1 {
			return
		}
	}
	p.text(x, y, s, face, c)
}

// rect fills a rectangle; edges between two pixels are as dark as they cover.
func (p *painter) rect(x0, y0, x1, y1 float64, c color.RGBA) {
	if x1 <= x0 || y1 <= y0 {
		return
	}
	p.fill([]Point{{x0, y0}, {x1, y0}, {x1, y1}, {x0, y1}}, c)
}

// fill fills a polygon.
func (p *painter) fill(points []Point, c color.RGBA) {
	box := image.Rectangle{}
	for i, pt := range points {
		r := image.Rect(int(math.Floor(pt.X)), int(math.Floor(pt.Y)), int(math.Ceil(pt.X))+1, int(math.Ceil(pt.Y))+1)
		if i == 0 {
			box = r
		}
		box = box.Union(r)
	}
	box = box.Intersect(p.img.Bounds())
	if box.Empty() {
		return
	}
	z := vector.NewRasterizer(box.Dx(), box.Dy())
	for i, pt := range points {
		x, y := float32(pt.X-float64(box.Min.X)), float32(pt.Y-float64(box.Min.Y))
		if i == 0 {
			z.MoveTo(x, y)
		} else {
			z.LineTo(x, y)
		}
	}
	z.ClosePath()
	z.Draw(p.img, box, image.NewUniform(c), image.Point{})
}

// line draws points joined by a stroke.
func (p *painter) line(points []Point, wide float64, c color.RGBA) {
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		dx, dy := b.X-a.X, b.Y-a.Y
		long := math.Hypot(dx, dy)
		if long == 0 {
			continue
		}
		// A little longer than from point to point, so that corners are closed.
		ux, uy := dx/long*wide/2, dy/long*wide/2
		a, b = Point{a.X - ux/2, a.Y - uy/2}, Point{b.X + ux/2, b.Y + uy/2}
		p.fill([]Point{{a.X - uy, a.Y + ux}, {b.X - uy, b.Y + ux}, {b.X + uy, b.Y - ux}, {a.X + uy, a.Y - ux}}, c)
	}
}

// dashes draws a dashed line across.
func (p *painter) dashes(x0, x1, y float64, c color.RGBA) {
	const dash, gap, wide = 11, 7, 2.5
	for x := x0; x < x1; x += dash + gap {
		p.rect(x, y-wide/2, min(x+dash, x1), y+wide/2, c)
	}
}
