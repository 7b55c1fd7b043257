// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"testing"
)

// example has one of everything.
func example() *Figure {
	return &Figure{
		Title: "Title", Notes: []string{"note"}, Width: 800,
		Legend:  []Key{{Name: "served", Colour: Served}, {Name: "budget", Colour: Allowed, Dashed: true}},
		Columns: []Column{{Title: "left", Note: "a query that is much too long to stand above its panel, and is cut where the panel ends"}, {Title: "right"}},
		Rows: []Row{{Title: "row", Note: "numbers", Panels: []Panel{
			{Bars: []Bar{{{N: 8, Colour: Served}, {N: 2, Colour: Limited}}, {}, {{N: 4, Colour: Served}}}, Mark: 6, XName: "seconds", YName: "requests"},
			{Lines: []Line{{Points: []Point{{0, 0}, {5, 10}, {10, 0}}, Colour: Measured}}, XMax: 10},
		}}},
	}
}

func drawn(t *testing.T, f *Figure) image.Image {
	t.Helper()
	var out bytes.Buffer
	if err := f.WritePNG(&out); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&out)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// count is the number of pixels of a colour in a part of a picture.
func count(img image.Image, in image.Rectangle, c color.RGBA) (n int) {
	for y := in.Min.Y; y < in.Max.Y; y++ {
		for x := in.Min.X; x < in.Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			if uint8(r>>8) == c.R && uint8(g>>8) == c.G && uint8(b>>8) == c.B {
				n++
			}
		}
	}
	return n
}

func TestFigure(t *testing.T) {
	f := example()
	img := drawn(t, f)
	if got := img.Bounds(); got.Dx() != 800 || got.Dy() != f.height() {
		t.Errorf("got a picture of %v, want 800 by %d", got, f.height())
	}
	left, right := img.Bounds(), img.Bounds()
	left.Min.Y, left.Max.X, right.Min.Y, right.Min.X = 250, 400, 250, 400
	served, limited := count(img, left, Served), count(img, left, Limited)
	// Areas are as the numbers are: 12 served, 2 limited. The mark hides a little.
	if ratio := float64(served) / float64(limited); ratio < 5.4 || ratio > 6.6 {
		t.Errorf("got %d pixels served and %d limited, want six times as many", served, limited)
	}
	if n := count(img, left, Allowed); n < 300 {
		t.Errorf("got a mark of %d pixels, want a line across the panel", n)
	}
	if n := count(img, right, Measured); n < 300 {
		t.Errorf("got a line of %d pixels, want one up and down", n)
	}
	if n := count(img, right, Served); n != 0 {
		t.Errorf("got %d pixels of bars where there are none", n)
	}
}

// TestSame holds that a figure always makes the same bytes.
func TestSame(t *testing.T) {
	var one, two bytes.Buffer
	if err := example().WritePNG(&one); err != nil {
		t.Fatal(err)
	}
	if err := example().WritePNG(&two); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same figure makes other bytes")
	}
	if n := one.Len(); n > 60_000 {
		t.Errorf("got %d bytes, want a small file", n)
	}
}

// TestScale holds that panels one above the other are on one scale, and that
// little shows.
func TestScale(t *testing.T) {
	f := &Figure{Title: "t", Width: 400, Rows: []Row{
		{Panels: []Panel{{Bars: []Bar{{{N: 1000, Colour: Served}}}}}},
		{Panels: []Panel{{Bars: []Bar{{{N: 500, Colour: Limited}}, {{N: 0.001, Colour: Failed}}}}}},
	}}
	img := drawn(t, f)
	served, limited := count(img, img.Bounds(), Served), count(img, img.Bounds(), Limited)
	// Half as high, and half as wide.
	if ratio := float64(served) / float64(limited); ratio < 3.6 || ratio > 4.4 {
		t.Errorf("got %d and %d pixels, want four times as many", served, limited)
	}
	if n := count(img, img.Bounds(), Failed); n == 0 {
		t.Error("a small number does not show")
	}
}

func TestEmpty(t *testing.T) {
	img := drawn(t, &Figure{Width: 400, Rows: []Row{{Panels: []Panel{{}}}}})
	if img.Bounds().Empty() {
		t.Error("got nothing, want an empty panel")
	}
	for _, bad := range []*Figure{{}, {Width: 20_000, Rows: []Row{{Panels: []Panel{{}}}}}, {Width: 100, Rows: []Row{{Panels: []Panel{{}}}}}} {
		if err := bad.WritePNG(&bytes.Buffer{}); err == nil {
			t.Errorf("%+v: got a picture, want an error", bad)
		}
	}
}

func TestNice(t *testing.T) {
	for x, want := range map[float64]float64{0: 1, -1: 1, 0.3: 0.5, 1: 1, 1.1: 2, 2.5: 5, 6: 10, 130: 200} {
		if got := nice(x); got < want*0.999 || got > want*1.001 {
			t.Errorf("%v: got %v, want %v", x, got, want)
		}
	}
}
