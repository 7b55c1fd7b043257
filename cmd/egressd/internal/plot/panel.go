// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"image"
	"math"
	"strconv"
)

// panel draws one chart into a box, whose upper end stands for top.
func (p *painter) panel(c *Panel, box image.Rectangle, top float64) {
	left, right := float64(box.Min.X), float64(box.Max.X)
	bottom, high := float64(box.Max.Y), float64(box.Dy())
	y := func(n float64) float64 { return bottom - high*min(max(n, 0), top)/top }
	for step, n := nice(top/4.4), 0.0; n <= top*(1+1e-9); n += step {
		if n > 0 {
			p.rect(left, math.Round(y(n)), right, math.Round(y(n))+1, grid)
		}
		p.right(box.Min.X-10, int(y(n))+7, number(n), p.faces.small, quiet)
	}
	xMax := c.XMax
	if xMax == 0 {
		xMax = float64(len(c.Bars))
	}
	if xMax == 0 {
		xMax = 1
	}
	x := func(n float64) float64 { return left + (right-left)*min(max(n, 0), xMax)/xMax }
	p.bars(c, left, right, y)
	for _, l := range c.Lines {
		points := make([]Point, len(l.Points))
		for i, point := range l.Points {
			points[i] = Point{x(point.X), y(point.Y)}
		}
		p.line(points, 3, l.Colour)
	}
	if c.Mark > 0 {
		p.dashes(left, right, y(c.Mark), Allowed)
	}
	p.rect(left, bottom, right, bottom+2, axis)
	p.xAxis(c, box, xMax, x)
	p.text(box.Min.X+4, box.Min.Y-8, c.YName, p.faces.small, quiet)
}

// bars draws them side by side, over the whole width.
func (p *painter) bars(c *Panel, left, right float64, y func(float64) float64) {
	wide := (right - left) / float64(max(len(c.Bars), 1))
	gap := 0.0
	if wide >= 5 {
		gap = max(1, wide*0.14)
	}
	for i, bar := range c.Bars {
		sum := 0.0
		from := left + float64(i)*wide
		for _, part := range bar {
			if part.N <= 0 {
				continue
			}
			low := y(sum)
			sum += part.N
			// Whatever is not nothing shows.
			p.rect(from+gap/2, min(y(sum), low-1), from+wide-gap/2, low, part.Colour)
		}
	}
}

func (p *painter) xAxis(c *Panel, box image.Rectangle, xMax float64, x func(float64) float64) {
	y := box.Max.Y + 24
	if len(c.Labels) > 0 {
		wide := float64(box.Dx()) / float64(len(c.Labels))
		for i, label := range c.Labels {
			p.centre(box.Min.X+int((float64(i)+0.5)*wide), y, label, p.faces.small, quiet)
		}
	} else {
		for step, n := nice(xMax/6.5), 0.0; n <= xMax*(1+1e-9); n += step {
			p.rect(x(n), float64(box.Max.Y), x(n)+1, float64(box.Max.Y)+6, axis)
			p.centre(int(x(n)), y, number(n), p.faces.small, quiet)
		}
	}
	p.centre((box.Min.X+box.Max.X)/2, y+22, c.XName, p.faces.small, quiet)
}

// number writes a number of an axis.
func number(n float64) string {
	return strconv.FormatFloat(math.Round(n*1e6)/1e6, 'f', -1, 64)
}
