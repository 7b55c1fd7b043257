// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/test/vm/frame"
	"github.com/egressd/egressd/test/vm/initramfs"
)

// cargo is what every machine gets, whatever its kernel.
type cargo struct {
	root    string // of the repository
	init    string // paths of binaries on this machine
	egressd string
	suites  []packed
}

// buildCargo compiles everything in dir.
func buildCargo(root, dir string, suites []suite) (c cargo, err error) {
	c = cargo{root: root, init: filepath.Join(dir, "init"), egressd: filepath.Join(dir, "egressd")}
	for path, pkg := range map[string]string{c.init: "./test/vm/init", c.egressd: "./cmd/egressd"} {
		cmd := exec.Command("go", "build", "-trimpath", "-o", path, pkg)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return c, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	for _, s := range suites {
		p, err := s.build(root, dir)
		if err != nil {
			return c, err
		}
		c.suites = append(c.suites, p)
	}
	return c, nil
}

// pack writes the first root file system of a machine to path.
func (c cargo) pack(path string, k fetched) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	a := initramfs.New(w)
	var plan frame.Plan
	if plan.Modules, err = packModules(a, k.dir); err != nil {
		return err
	}
	for _, dir := range []string{"/root", "/var/tmp", "/etc"} {
		a.Dir(dir)
	}
	a.Bytes("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"))
	a.Bytes("/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	a.Bytes("/etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n"))
	a.Copy("/init", c.init)
	a.Copy("/usr/bin/egressd", c.egressd)
	var programs []string
	for _, s := range c.suites {
		binary := s.dir() + "/" + filepath.Base(s.binary)
		a.Copy(binary, s.binary)
		if err := packTestdata(a, filepath.Join(c.root, s.pkg, "testdata"), s.dir()+"/testdata"); err != nil {
			return err
		}
		programs = append(programs, s.with...)
		plan.Runs = append(plan.Runs, frame.Run{
			Name: s.name(), Path: binary, Args: s.args(), Env: s.env, Dir: s.dir(),
			// The binary's own limit comes first, since it tells where it stood.
			Timeout: s.timeout + limitGrace,
		})
	}
	if err := packPrograms(a, programs); err != nil {
		return err
	}
	text, err := json.MarshalIndent(plan, "", "\t")
	if err != nil {
		return err
	}
	a.Bytes(frame.PlanPath, 0o644, text)
	if err := a.Close(); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// packModules writes the modules and returns their paths in loading order.
func packModules(a *initramfs.Archive, dir string) (paths []string, err error) {
	modules, _, err := modulesOf(dir, moduleNames)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		path := "/modules/" + m.name + ".ko"
		a.Bytes(path, 0o644, m.content)
		paths = append(paths, path)
	}
	return paths, nil
}

// packTestdata writes what lies in the folder from, if there is one.
func packTestdata(a *initramfs.Archive, from, to string) error {
	if _, err := os.Stat(from); os.IsNotExist(err) {
		return nil
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			a.Copy(to+strings.TrimPrefix(path, from), path)
		}
		return err
	})
}

// packPrograms writes programs of this machine, at the paths that they have
// here, with the shared libraries that they are linked with. /bin and the like
// lead to /usr, as they do on every Debian since 12.
func packPrograms(a *initramfs.Archive, programs []string) error {
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		a.Symlink("/"+dir, "usr/"+dir)
	}
	var files []string
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("tests need %s: %w", name, err)
		}
		files = append(files, path)
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // a static program or a script
		}
		files = append(files, libraries(string(out))...)
	}
	for i, path := range files {
		// The folder without links; a file that is one is packed as what it
		// leads to, under its own name.
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return err
		}
		files[i] = filepath.Join(dir, filepath.Base(path))
	}
	slices.Sort(files)
	for _, path := range slices.Compact(files) {
		if !strings.HasPrefix(path, "/usr/") {
			return fmt.Errorf("tests need %s, which is not below /usr", path)
		}
		a.Copy(path, path)
	}
	return nil
}

// libraries reads the paths out of what ldd prints.
func libraries(text string) (paths []string) {
	for line := range strings.Lines(text) {
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(word, "/") {
				paths = append(paths, word)
				break
			}
		}
	}
	return paths
}
