// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NetnsCookie returns the cookie of the calling thread's network namespace:
// the number by which the programs and Enrol know it. Cookies are never used
// again while the machine is up. A caller that changes namespaces must have
// locked its goroutine to the thread.
func NetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("read network namespace cookie: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read network namespace cookie: %w", err)
	}
	return cookie, nil
}
