// SPDX-License-Identifier: Apache-2.0

// Package plot draws what happened second by second, as a PNG on a light ground:
// panels side by side and one above the other, all of one column on one scale, so
// that a ceiling and a sawtooth can be compared at a glance.
//
// It is small on purpose: bars, lines, a mark for a limit, axes and text. Shapes
// are rasterized by golang.org/x/image/vector and text is set in the Go fonts
// that come with the same module, so that a picture needs nothing of the machine
// and is the same on each. The same figure makes the same bytes.
package plot
