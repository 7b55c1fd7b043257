// SPDX-License-Identifier: Apache-2.0

package proxy

import "unsafe"

// view is b as a string without a copy: valid only while b is not written to.
func view(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
