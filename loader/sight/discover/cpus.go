// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// maxCPUs is more than any kernel is built for.
const maxCPUs = 16384

func onlineCPUs() (string, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return "", fmt.Errorf("read online cpus: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// parseCPUs reads a list of ranges, as in 0-3,8 (cpuset(7)).
func parseCPUs(s string) (cpus []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 31)
		last, err2 := strconv.ParseUint(high, 10, 31)
		if err1 != nil || err2 != nil || first > last || last >= maxCPUs {
			return nil, fmt.Errorf("read list of cpus %q", s)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, int(cpu))
		}
	}
	return cpus, nil
}
