// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"image"
	"image/color"
)

// shades is how many steps there are from the ground to each colour, for the edges
// of letters and lines.
const shades = 22

// palette are the colours of a picture, and their shades on the ground.
func palette() color.Palette {
	p := color.Palette{ground}
	for _, c := range []color.RGBA{Served, Limited, Failed, Measured, Allowed, ink, quiet, grid, axis} {
		for i := 1; i <= shades; i++ {
			mix := func(a, b uint8) uint8 { return uint8((int(a)*(shades-i) + int(b)*i) / shades) }
			p = append(p, color.RGBA{mix(ground.R, c.R), mix(ground.G, c.G), mix(ground.B, c.B), 0xff})
		}
	}
	return p
}

// reduced is a picture with the colours of the palette alone: a fifth of the size
// of the other, and no difference that one sees.
func reduced(img *image.RGBA) *image.Paletted {
	out := image.NewPaletted(img.Bounds(), palette())
	known := map[color.RGBA]uint8{}
	for y := img.Rect.Min.Y; y < img.Rect.Max.Y; y++ {
		for x := img.Rect.Min.X; x < img.Rect.Max.X; x++ {
			c := img.RGBAAt(x, y)
			i, is := known[c]
			if !is {
				i = uint8(out.Palette.Index(c))
				known[c] = i
			}
			out.SetColorIndex(x, y, i)
		}
	}
	return out
}
