// SPDX-License-Identifier: Apache-2.0

package discover

// Mapped lists the files that a process maps executable, each once, as device
// and inode like those of an Event.
func Mapped(pid int) ([][2]uint64, error) {
	list, err := processMaps(pid)
	if err != nil {
		return nil, err
	}
	var out [][2]uint64
	seen := map[fileID]bool{}
	for _, m := range list {
		if m.exec && !seen[m.file] {
			seen[m.file] = true
			out = append(out, [2]uint64{m.file.dev, m.file.inode})
		}
	}
	return out, nil
}
