// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// moduleNames are the modules that every machine loads. One that a kernel has
// built in is none of its modules.
var moduleNames = []string{
	"veth", "dummy", "tun", "ifb", "8021q", "bonding",
	"sch_fq", "sch_ingress", "sch_netem", "cls_bpf", "act_bpf",
	"inet_diag", "tcp_diag", "mptcp_diag", "tls", "overlay",
}

// module is one that is to be packed.
type module struct {
	name    string
	content []byte // the ELF file, whatever it was compressed with
}

// modulesOf reads the modules of a kernel with all that they need, in an order
// in which they can be loaded.
//
// The packages hold no modules.dep, which depmod makes on installation. Each
// module names those that it needs in its section .modinfo, and so it is read
// from there.
func modulesOf(dir string, names []string) (order []module, builtin []string, err error) {
	paths := map[string]string{}
	err = filepath.WalkDir(filepath.Join(dir, "modules"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			paths[moduleName(base)] = path
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("find modules: %w", err)
	}
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := paths[name]
		if !ok {
			builtin = append(builtin, name)
			return nil
		}
		content, err := readModule(path)
		if err != nil {
			return err
		}
		needs, err := dependencies(content)
		if err != nil {
			return fmt.Errorf("module %s: %w", path, err)
		}
		for _, need := range needs {
			if err := add(need); err != nil {
				return err
			}
		}
		order = append(order, module{name, content})
		return nil
	}
	for _, name := range names {
		if err := add(moduleName(name)); err != nil {
			return nil, nil, err
		}
	}
	return order, builtin, nil
}

// moduleName spells a name as the kernel does: file names have hyphens.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// readModule reads a module's file. Debian compresses them since 6.12.
func readModule(path string) ([]byte, error) {
	if strings.HasSuffix(path, ".ko") {
		return os.ReadFile(path)
	}
	if !strings.HasSuffix(path, ".ko.xz") {
		return nil, fmt.Errorf("module %s: compressed in an unknown way", path)
	}
	out, err := exec.Command("xz", "--decompress", "--stdout", path).Output()
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", path, err)
	}
	return out, nil
}

// dependencies are the modules that a module says it needs.
func dependencies(content []byte) (names []string, err error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			for name := range strings.SplitSeq(list, ",") {
				names = append(names, moduleName(name))
			}
		}
	}
	return names, nil
}
