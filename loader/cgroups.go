// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
)

// OpenCgroups opens the directories of the cgroups, paths from root, to attach
// programs to. Those that lie below another one of the list are left out: its
// programs see their traffic, too. The caller closes the files.
func OpenCgroups(root string, names []string) (_ []*os.File, err error) {
	var dirs []*os.File
	defer func() {
		if err == nil {
			return
		}
		for _, dir := range dirs {
			err = errors.Join(err, dir.Close())
		}
	}()
	for _, name := range outermost(names) {
		dir, err := openCgroup(cgroupDir(root, name))
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}
