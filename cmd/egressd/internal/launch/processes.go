// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// PIDs lists the processes of the host.
func PIDs() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Comm is the name of a process, or "?" if it has ended.
func Comm(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSuffix(string(text), "\n")
}
