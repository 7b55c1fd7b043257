// SPDX-License-Identifier: Apache-2.0

package lab

import "unsafe"

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
