// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The agent is this test binary in another process: it makes the system calls
// that it is told, one JSON object per line, in the cgroup and network
// namespace in which it was started.

const agentEnv = "EGRESSD_TEST_AGENT"

type agentCall struct {
	Op     string
	FD     int
	Family int
	Type   int
	Proto  int
	Level  int
	Option int
	Value  int
	Text   string
	Addr   netip.AddrPort
}

type agentReply struct {
	Errno syscall.Errno
	Err   string
	N     int
	Addr  netip.AddrPort
}

// agentMain serves calls until its standard input ends.
func agentMain() {
	runtime.LockOSThread()
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var call agentCall
		if err := in.Decode(&call); err != nil {
			os.Exit(0)
		}
		var reply agentReply
		err := agentDo(&call, &reply)
		if !errors.As(err, &reply.Errno) && err != nil {
			reply.Err = err.Error()
		}
		if err := out.Encode(&reply); err != nil {
			os.Exit(1)
		}
	}
}

func agentDo(c *agentCall, r *agentReply) (err error) {
	switch c.Op {
	case "socket":
		r.N, err = unix.Socket(c.Family, c.Type|unix.SOCK_CLOEXEC, c.Proto)
	case "connect":
		err = unix.Connect(c.FD, sockaddr(c.Family, c.Addr))
	case "bind":
		err = unix.Bind(c.FD, sockaddr(c.Family, c.Addr))
	case "listen":
		err = unix.Listen(c.FD, c.Value)
	case "accept":
		r.N, _, err = unix.Accept4(c.FD, unix.SOCK_CLOEXEC)
	case "local":
		var sa unix.Sockaddr
		if sa, err = unix.Getsockname(c.FD); err == nil {
			r.Addr = addrPort(sa)
		}
	case "disconnect":
		_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(c.FD), uintptr(unsafePointer(&unix.RawSockaddr{Family: unix.AF_UNSPEC})), 16)
		if errno != 0 {
			err = errno
		}
	case "peer":
		var sa unix.Sockaddr
		if sa, err = unix.Getpeername(c.FD); err == nil {
			r.Addr = addrPort(sa)
		}
	case "setint":
		err = unix.SetsockoptInt(c.FD, c.Level, c.Option, c.Value)
	case "settext":
		err = unix.SetsockoptString(c.FD, c.Level, c.Option, c.Text)
	case "getint":
		r.N, err = unix.GetsockoptInt(c.FD, c.Level, c.Option)
	case "cookie":
		var cookie uint64
		cookie, err = unix.GetsockoptUint64(c.FD, unix.SOL_SOCKET, unix.SO_COOKIE)
		r.N = int(cookie)
	case "send":
		buf := make([]byte, c.Value)
		for r.N < len(buf) && err == nil {
			var n int
			n, err = unix.Write(c.FD, buf[r.N:])
			r.N += max(n, 0)
		}
	case "sendto": // Value bytes to Addr, from the address Text if there is one
		var control []byte
		if c.Text != "" {
			control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: netip.MustParseAddr(c.Text).As4()})
		}
		r.N, err = unix.SendmsgN(c.FD, make([]byte, c.Value), control, sockaddr(c.Family, c.Addr), 0)
	case "receive": // Value bytes, or to the end if 0
		buf := make([]byte, 1<<16)
		for c.Value == 0 || r.N < c.Value {
			var n int
			n, err = unix.Read(c.FD, buf)
			if err != nil || n == 0 {
				break
			}
			r.N += n
		}
	case "readable": // waits until Value bytes have arrived
		for r.N < c.Value && err == nil {
			r.N, err = unix.IoctlGetInt(c.FD, unix.TIOCINQ)
		}
	case "chown":
		err = unix.Fchown(c.FD, c.Value, -1)
	case "minrtt": // in microseconds
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(c.FD, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			r.N = int(info.Min_rtt)
		}
	case "dropcap": // number Value, from now on
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err = unix.Capget(&header, &data[0]); err == nil {
			data[c.Value/32].Effective &^= 1 << (c.Value % 32)
			err = unix.Capset(&header, &data[0])
		}
	case "veth": // a device called Text, up, with Addr in a /24
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.Text}, PeerName: c.Text + "-peer"}
		if err = netlink.LinkAdd(link); err != nil {
			return err
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: c.Addr.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}}
		if err = netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		r.N, err = link.Attrs().Index, netlink.LinkSetUp(link)
	case "shutdown":
		err = unix.Shutdown(c.FD, c.Value)
	case "poll": // for writability
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(c.FD), Events: unix.POLLOUT}}, 2000)
	case "close":
		err = unix.Close(c.FD)
	case "churn": // Value times socket, connect, close
		for range c.Value {
			var fd int
			if fd, err = unix.Socket(c.Family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
			err = unix.Connect(fd, sockaddr(c.Family, c.Addr))
			unix.Close(fd)
			if err != nil {
				return err
			}
			r.N++
		}
	case "knock": // Value times socket, a connect that is not waited for, close
		for range c.Value {
			var fd int
			if fd, err = unix.Socket(c.Family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
				return err
			}
			err = unix.Connect(fd, sockaddr(c.Family, c.Addr))
			unix.Close(fd)
			if !errors.Is(err, unix.EINPROGRESS) {
				return fmt.Errorf("knock at %s: %w", c.Addr, err)
			}
			err = nil
			r.N++
		}
	case "datagrams": // Value times sendto of one byte
		for range c.Value {
			if err = unix.Sendto(c.FD, []byte{0}, 0, sockaddr(c.Family, c.Addr)); err != nil {
				return err
			}
			r.N++
		}
	case "pinggroups": // lets every group make ping sockets in this namespace
		err = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 65535"), 0)
	case "loup":
		var lo netlink.Link
		if lo, err = netlink.LinkByName("lo"); err == nil {
			err = netlink.LinkSetUp(lo)
		}
	default:
		err = fmt.Errorf("unknown call %q", c.Op)
	}
	return err
}

func sockaddr(family int, a netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET6 {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// agent is the parent's end.
type agent struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	send *json.Encoder
	recv *json.Decoder
}

// startAgent starts an agent in the cgroup and ends it with the test.
func startAgent(t testing.TB, cgroup string, attr syscall.SysProcAttr) *agent {
	t.Helper()
	dir, err := os.OpenFile(cgroup, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	cmd := exec.Command("/proc/self/exe")
	// The race detector would sleep for a second at exit.
	cmd.Env = append(os.Environ(), agentEnv+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &attr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start agent: %v", err)
	}
	a := &agent{t: t, cmd: cmd, in: in, send: json.NewEncoder(in), recv: json.NewDecoder(bufio.NewReader(out))}
	t.Cleanup(a.stop)
	return a
}

func (a *agent) stop() {
	a.in.Close()
	if err := a.cmd.Wait(); err != nil {
		a.t.Errorf("agent: %v", err)
	}
}

func (a *agent) pid() int { return a.cmd.Process.Pid }

// try makes one call; the errno is the caller's affair.
func (a *agent) try(c agentCall) (agentReply, error) {
	a.t.Helper()
	if err := a.send.Encode(c); err != nil {
		a.t.Fatalf("agent %s: %v", c.Op, err)
	}
	var r agentReply
	if err := a.recv.Decode(&r); err != nil {
		a.t.Fatalf("agent %s: %v", c.Op, err)
	}
	if r.Err != "" {
		a.t.Fatalf("agent %s: %s", c.Op, r.Err)
	}
	if r.Errno != 0 {
		return r, r.Errno
	}
	return r, nil
}

func (a *agent) do(c agentCall) agentReply {
	a.t.Helper()
	r, err := a.try(c)
	if err != nil {
		a.t.Fatalf("agent %s: %v", c.Op, err)
	}
	return r
}

// client is a socket in the agent.
type client struct {
	*agent
	fd     int
	family int
}

func (a *agent) socket(family, kind, proto int) *client {
	a.t.Helper()
	return &client{a, a.do(agentCall{Op: "socket", Family: family, Type: kind, Proto: proto}).N, family}
}

func (a *agent) tcp4() *client { a.t.Helper(); return a.socket(unix.AF_INET, unix.SOCK_STREAM, 0) }
func (a *agent) tcp6() *client { a.t.Helper(); return a.socket(unix.AF_INET6, unix.SOCK_STREAM, 0) }

func (c *client) connect(dest string) error {
	c.t.Helper()
	_, err := c.try(agentCall{Op: "connect", FD: c.fd, Family: c.family, Addr: netip.MustParseAddrPort(dest)})
	return err
}

func (c *client) mustConnect(dest string) *client {
	c.t.Helper()
	if err := c.connect(dest); err != nil {
		c.t.Fatalf("connect %s: %v", dest, err)
	}
	return c
}

func (c *client) bind(addr string) *client {
	c.t.Helper()
	c.do(agentCall{Op: "bind", FD: c.fd, Family: c.family, Addr: netip.MustParseAddrPort(addr)})
	return c
}

func (c *client) set(level, option, value int) *client {
	c.t.Helper()
	c.do(agentCall{Op: "setint", FD: c.fd, Level: level, Option: option, Value: value})
	return c
}

func (c *client) peer() netip.AddrPort {
	c.t.Helper()
	return c.do(agentCall{Op: "peer", FD: c.fd}).Addr
}

func (c *client) call(op string, value int) agentReply {
	c.t.Helper()
	return c.do(agentCall{Op: op, FD: c.fd, Value: value})
}

func (c *client) close() { c.t.Helper(); c.call("close", 0) }
