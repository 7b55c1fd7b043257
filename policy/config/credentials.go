// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/exitid"
)

// user reads the user name that egressd logs in with at a proxy. Messages do
// not repeat it.
func (v value) user() string {
	s, ok := v.text("customer-7")
	if !ok {
		return ""
	}
	switch {
	case s == "" || len(s) > exitid.MaxUser || strings.ContainsFunc(s, isControl):
		v.Reject("is no user name; use 1 to %d bytes without control characters", exitid.MaxUser)
	case strings.Contains(s, ":"): // RFC 7617 section 2
		v.Reject("holds a colon, which ends a user name; write the name alone, and the password into a password_file")
	default:
		return s
	}
	return ""
}

// maxPassword bounds the first line of a password file.
const maxPassword = 1024

// passwordFile reads the password out of the file that is named.
func (v value) passwordFile() policy.Secret {
	s, ok := v.text("/etc/egressd/e017.pw")
	if !ok {
		return policy.Secret{}
	}
	if !path.IsAbs(s) || strings.ContainsFunc(s, isControl) {
		v.Reject("%q is no absolute file name; write it as /etc/egressd/e017.pw", strict.Clip(s))
		return policy.Secret{}
	}
	password, err := readPassword(s)
	if err != nil {
		v.Reject("%v", err)
	}
	return password
}

// readPassword returns the first line of a file that is closed to others. Its
// errors are the end of a message, and show nothing of what is in the file.
func readPassword(name string) (policy.Secret, error) {
	// Looked at before it is opened, since opening a device may do something.
	if info, err := os.Stat(name); err != nil {
		return policy.Secret{}, unreadable(name, err)
	} else if !info.Mode().IsRegular() {
		return policy.Secret{}, notRegular(name)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return policy.Secret{}, unreadable(name, err)
	}
	defer f.Close()
	info, err := f.Stat() // of what was opened, whatever has the name now
	if err != nil {
		return policy.Secret{}, unreadable(name, err)
	}
	if !info.Mode().IsRegular() {
		return policy.Secret{}, notRegular(name)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return policy.Secret{}, fmt.Errorf("%s is open to every user (mode %04o); run chmod o= %s", name, mode, name)
	}
	line, err := io.ReadAll(io.LimitReader(f, maxPassword+3)) // one too many, and a line break
	if err != nil {
		return policy.Secret{}, unreadable(name, err)
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	switch {
	case len(line) == 0:
		return policy.Secret{}, fmt.Errorf("%s has no password in its first line; write it there, or remove password_file for none", name)
	case len(line) > maxPassword:
		return policy.Secret{}, fmt.Errorf("the first line of %s has more than %d bytes; write the password alone there", name, maxPassword)
	case bytes.ContainsFunc(line, isControl):
		return policy.Secret{}, fmt.Errorf("the first line of %s holds control characters; write the password alone there, as text", name)
	}
	return policy.NewSecret(string(line)), nil
}

func notRegular(name string) error {
	return fmt.Errorf("%s is no regular file; name one whose first line is the password", name)
}

// unreadable says why a file could not be read, and what to do.
func unreadable(name string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	remedy := "check the file"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		remedy = "create it with mode 0600 and the password as its first line"
	case errors.Is(err, fs.ErrPermission):
		remedy = "run as a user who may read it"
	}
	return fmt.Errorf("%s cannot be read: %w; %s", name, err, remedy)
}

// unusedUsers rejects a user of an exit in no pool: what clients themselves
// send to its proxy stays as it is. After a mistake in pools nothing can be
// said.
func (r *reader) unusedUsers(p *policy.Policy) {
	if len(r.Errs) > 0 {
		return
	}
	used := map[string]bool{}
	for _, pool := range p.Pools {
		for i := range pool.Members {
			used[pool.Members[i].Exit.Name] = true
		}
	}
	for i := range p.Exits {
		name := p.Exits[i].Name
		if v, ok := r.exits.users[name]; ok && !used[name] {
			v.Reject("is for requests of pools, and no pool has the exit %s; name it in one, or remove the line", name)
		}
	}
}
