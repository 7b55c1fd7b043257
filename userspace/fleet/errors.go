// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What a call can fail of, for errors.Is.
var (
	// ErrTimeout: no answer in time. The call may have taken effect, or may yet
	// do so, but for grants, which a late call does not get.
	ErrTimeout = errors.New("no answer in time")
	// ErrDown: no server, or one that cannot serve now: it is loading, full, a
	// replica, part of a broken cluster. It may pass.
	ErrDown = errors.New("not available")
	// ErrRefused: the server answers and does not want us: wrong password, too
	// few rights, no scripts. It will not pass by itself.
	ErrRefused = errors.New("refused")
)

// callError is what became of a call. It has no error below it but its class
// and the caller's context: texts of the client library never get out
// unexamined, since its configuration holds the password.
type callError struct {
	class  error
	detail string
	ctx    error // of the caller's context, or nil
}

func (e *callError) Error() string {
	if e.detail == "" {
		return "fleet store: " + e.class.Error()
	}
	return fmt.Sprintf("fleet store: %v: %s", e.class, e.detail)
}

func (e *callError) Unwrap() []error {
	if e.ctx != nil {
		return []error{e.class, e.ctx}
	}
	return []error{e.class}
}

// passing are the beginnings of errors of a server that may serve later.
var passing = []string{
	"LOADING", "BUSY", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS", "MOVED", "ASK", "UNBLOCKED",
	"ERR max number of clients",
}

// classify makes an error of the client library one of ours. Server texts are
// kept without what clean removes.
func classify(err error, ctx error, clean func(string) string) error {
	e := &callError{ctx: ctx}
	var answer redis.Error
	var operation *net.OpError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &answer):
		e.class, e.detail = ErrRefused, clean(answer.Error())
		for _, word := range passing {
			if strings.HasPrefix(answer.Error(), word) {
				e.class = ErrDown
			}
		}
	case errors.Is(err, errReply):
		e.class, e.detail = ErrRefused, errReply.Error()
	case errors.Is(err, context.Canceled):
		e.class, e.detail = ErrTimeout, "the caller gave up"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		e.class = ErrTimeout
	case errors.As(err, &operation):
		e.class, e.detail = ErrDown, operation.Op
		if operation.Err != nil {
			e.detail += ": " + clean(operation.Err.Error())
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.class, e.detail = ErrDown, "the connection ended"
	default:
		e.class, e.detail = ErrDown, clean(err.Error())
	}
	return e
}

// broken reports whether the connection failed before an answer came, and not
// for want of time: then the call can be made once more.
func broken(err error) bool {
	if errors.Is(err, errReply) {
		return false
	}
	var answer redis.Error
	var timeout interface{ Timeout() bool }
	return !errors.As(err, &answer) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
		(!errors.As(err, &timeout) || !timeout.Timeout())
}
