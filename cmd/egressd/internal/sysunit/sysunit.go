// SPDX-License-Identifier: Apache-2.0

// Package sysunit knows as much of systemd's files as it takes to add to a
// service: names of units, where their files are, who they run as, and how the
// values of an environment file are written.
package sysunit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxName is the longest name of a unit, in bytes (systemd.unit(5)).
const maxName = 255

// Service is the full name of a service that a user gave with or without its
// ".service".
func Service(name string) (string, error) {
	for i := range len(name) {
		c := name[i]
		if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || strings.IndexByte(`:-_.\@`, c) >= 0) {
			return "", fmt.Errorf("%q is no name of a unit: it has letters, digits and : - _ . \\ @ only", name)
		}
	}
	for _, kind := range []string{".socket", ".timer", ".target", ".mount", ".path", ".slice", ".scope", ".swap", ".device", ".automount"} {
		if strings.HasSuffix(name, kind) {
			return "", fmt.Errorf("%s is no service; name the service that it belongs to", name)
		}
	}
	base := strings.TrimSuffix(name, ".service")
	if base == "" || base[0] == '.' || base[0] == '-' || base[0] == '@' || len(base) > maxName-len(".service") {
		return "", fmt.Errorf("%q is no name of a service; write it as in crawler or crawler.service", name)
	}
	return base + ".service", nil
}

// Unit is what the files of a unit say of it.
type Unit struct {
	User string // who its processes run as
}

// folders are where unit files are, those that count most first
// (systemd.unit(5)).
var folders = []string{
	"etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system",
}

// Find reads the files of a service below root.
func Find(root, unit string) (*Unit, error) {
	u := &Unit{}
	names := []string{unit}
	if at := strings.IndexByte(unit, '@'); at >= 0 && unit[at+1:] != ".service" {
		names = append(names, unit[:at+1]+".service") // its template
	}
	var dynamic bool
	set := func(key, value string) {
		switch key {
		case "User":
			u.User = value
		case "DynamicUser":
			dynamic = strings.EqualFold(value, "yes") || strings.EqualFold(value, "true") || value == "1" || strings.EqualFold(value, "on")
		}
	}
	if err := readMain(root, names, set); err != nil {
		return nil, err
	}
	// The template's own drop-ins count less than those of the instance.
	for i := len(names) - 1; i >= 0; i-- {
		if err := readDropIns(root, names[i], set); err != nil {
			return nil, err
		}
	}
	if u.User == "" && dynamic {
		u.User = strings.TrimSuffix(unit, ".service")
	}
	if u.User == "" {
		u.User = "root"
	}
	return u, nil
}

// readMain reads the file of the unit that counts.
func readMain(root string, names []string, set func(key, value string)) error {
	for _, name := range names {
		for _, dir := range folders {
			text, err := os.ReadFile(filepath.Join(root, dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("read unit: %w", err)
			}
			service(text, set)
			return nil
		}
	}
	return fmt.Errorf("there is no service %s", names[0])
}

// readDropIns reads the drop-ins of a unit, by name, of each the one that
// counts.
func readDropIns(root, name string, set func(key, value string)) error {
	seen := make(map[string]bool)
	var files []string
	for _, dir := range folders {
		folder := filepath.Join(root, dir, name+".d")
		found, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list drop-ins: %w", err)
		}
		for _, entry := range found {
			if strings.HasSuffix(entry.Name(), ".conf") && !seen[entry.Name()] {
				seen[entry.Name()] = true
				files = append(files, filepath.Join(folder, entry.Name()))
			}
		}
	}
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read drop-in: %w", err)
		}
		service(text, set)
	}
	return nil
}

// service calls set for each assignment in the section Service of a file.
func service(text []byte, set func(key, value string)) {
	section := ""
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for continued := ""; lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" && continued == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		if part, ok := strings.CutSuffix(line, `\`); ok {
			continued += part + " "
			continue
		}
		line, continued = continued+line, ""
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		if key, value, ok := strings.Cut(line, "="); ok && section == "[Service]" {
			set(strings.TrimSpace(key), strings.TrimSpace(value))
		}
	}
}

// QuoteEnv writes a value for a file of EnvironmentFile= (systemd.exec(5)).
func QuoteEnv(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`).Replace(value) + `"`
}
