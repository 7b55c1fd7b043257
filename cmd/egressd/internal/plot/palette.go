// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"encoding/binary"
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
	known := map[uint32]uint8{}
	last, index := uint32(0), uint8(0) // most pixels are like the one before
	for i := range out.Pix {
		at := img.Pix[4*i : 4*i+4 : 4*i+4]
		key := binary.LittleEndian.Uint32(at)
		if key != last || i == 0 {
			var is bool
			if index, is = known[key]; !is {
				index = uint8(out.Palette.Index(color.RGBA{at[0], at[1], at[2], at[3]}))
				known[key] = index
			}
			last = key
		}
		out.Pix[i] = index
	}
	return out
}
