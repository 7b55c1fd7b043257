// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrRunning says that a daemon already listens on the socket.
var ErrRunning = errors.New("a daemon is already running")

// Listen opens the control socket at path, for its owner alone, making the
// folder if it is missing. A socket that a dead daemon left is replaced; a
// living one is ErrRunning.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make folder of admin socket: %w", err)
	}
	if err := clear(path); err != nil {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, fmt.Errorf("open admin socket: %w", err)
	}
	// Between bind and here others may connect; the check of credentials
	// turns them away as well.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect admin socket: %w", err), ln.Close())
	}
	return ln, nil
}

// clear removes the socket of a daemon that is gone.
func clear(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for admin socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("open admin socket: %s is there and no socket", path)
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%w: it answers on %s", ErrRunning, path)
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("look who listens on admin socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale admin socket: %w", err)
	}
	return nil
}

// peerUID is the user at the other end of a unix connection.
func peerUID(conn net.Conn) (uint32, error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("read peer credentials: %T is no unix connection", conn)
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("read peer credentials: %w", credErr)
	}
	return cred.Uid, nil
}
