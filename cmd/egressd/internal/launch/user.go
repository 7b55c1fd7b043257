// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

// UID is the number of a user, who is named or given as a number.
func UID(name string) (uint32, error) {
	text := name
	if u, err := user.Lookup(name); err == nil {
		text = u.Uid
	} else if strings.Trim(name, "0123456789") != "" {
		// Users that are in no file, as those that systemd makes up for a
		// service, only the C library finds.
		out, err := exec.Command("id", "-u", "--", name).Output()
		if err != nil {
			return 0, fmt.Errorf("look up user: there is no user %q", name)
		}
		text = strings.TrimSpace(string(out))
	}
	uid, err := strconv.ParseUint(text, 10, 32)
	if err != nil || uid == 1<<32-1 {
		return 0, fmt.Errorf("look up user: there is no user %q", name)
	}
	return uint32(uid), nil
}

// UserName is the name of a user, or its number if it has none.
func UserName(uid uint32) string {
	text := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(text); err == nil {
		return u.Username
	}
	return text
}
