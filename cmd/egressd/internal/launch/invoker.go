// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os/user"
	"strconv"
	"syscall"
)

// Invoker returns the credentials of the user who called through sudo, with
// the groups that the user database gives them, or nil if nobody did or root
// itself. euid is that of this process: one that is not root could not change
// to anybody.
func Invoker(getenv func(string) string, euid int) (*syscall.Credential, error) {
	uidText, gidText := getenv("SUDO_UID"), getenv("SUDO_GID")
	if euid != 0 || uidText == "" {
		return nil, nil
	}
	uid, err := strconv.ParseUint(uidText, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("parse SUDO_UID: %w", err)
	}
	gid, err := strconv.ParseUint(gidText, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("parse SUDO_GID: %w", err)
	}
	if uid == 0 {
		return nil, nil
	}
	cred := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	u, err := user.LookupId(uidText)
	if _, unknown := err.(user.UnknownUserIdError); unknown {
		return cred, nil // no entry, no further groups
	}
	if err != nil {
		return nil, fmt.Errorf("look up user %s: %w", uidText, err)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("look up groups of user %s: %w", u.Username, err)
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			cred.Groups = append(cred.Groups, uint32(n))
		}
	}
	return cred, nil
}
