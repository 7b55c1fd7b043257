// SPDX-License-Identifier: Apache-2.0

// Command serve is an HTTPS origin of package tlsorigin as a process of its
// own, for tests that keep their origin in another namespace. It writes its
// authority's certificate to a file, and what it has seen, as JSON, to whoever
// connects to a socket in the file system, where namespaces of the network
// make no difference.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/test/tlsorigin"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

func run() error {
	var c tlsorigin.Config
	listen := flag.String("listen", "127.0.0.1:0", "address of the origin")
	host := flag.String("host", "localhost", "name in its certificate")
	trust := flag.String("trust", "", "file that the authority's certificate is written to")
	socket := flag.String("log", "", "socket that answers with the log")
	protocols := flag.String("protocols", "h2,http/1.1", "protocols that it agrees to")
	flag.Float64Var(&c.Rate, "rate", 0, "requests a second that an address is allowed; 0: no limit")
	flag.BoolVar(&c.Tell, "tell", false, "tell of the limit in each answer")
	flag.Func("force", "PATH=STATUS or PATH=STATUS,RETRY-AFTER: an answer, whatever the limit is (any number)", func(s string) error {
		f, err := forced(s)
		c.Forced = append(c.Forced, f)
		return err
	})
	c.Pages = map[string]string{}
	flag.Func("page", "PATH=FILE: a page, which is not limited (any number)", func(s string) error {
		path, name, _ := strings.Cut(s, "=")
		text, err := os.ReadFile(name)
		c.Pages[path] = string(text)
		return err
	})
	flag.Parse()
	if flag.NArg() > 0 || *trust == "" || *socket == "" {
		return fmt.Errorf("needs -trust and -log, and takes no arguments")
	}
	c.Protocols = strings.Split(*protocols, ",")
	authority, err := tlsorigin.NewAuthority()
	if err != nil {
		return err
	}
	if c.Certificate, err = authority.Certify(*host); err != nil {
		return err
	}
	if err := os.WriteFile(*trust, authority.PEM(), 0o644); err != nil {
		return fmt.Errorf("write the authority's certificate: %w", err)
	}
	origin, err := tlsorigin.New(c)
	if err != nil {
		return err
	}
	logs, err := net.Listen("unix", *socket)
	if err != nil {
		return fmt.Errorf("listen for who wants the log: %w", err)
	}
	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Println(ln.Addr())

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGINT, unix.SIGTERM)
	var tasks errgroup.Group
	stopping := make(chan struct{})
	// ended makes an orderly stop of what ends a task then.
	ended := func(err error) error {
		select {
		case <-stopping:
			return nil
		default:
			return err
		}
	}
	tasks.Go(func() error { return ended(origin.Serve(ln)) })
	tasks.Go(func() error { return ended(tell(logs, origin)) })
	<-stop
	close(stopping)
	logs.Close()
	origin.Close()
	return tasks.Wait()
}

// tell writes the log to each who connects.
func tell(l net.Listener, origin *tlsorigin.Origin) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept who wants the log: %w", err)
		}
		if err := origin.WriteLog(conn); err != nil {
			fmt.Fprintln(os.Stderr, "serve:", err)
		}
		conn.Close()
	}
}

// forced reads PATH=STATUS,RETRY-AFTER.
func forced(s string) (f tlsorigin.Forced, err error) {
	path, answer, ok := strings.Cut(s, "=")
	if !ok || !strings.HasPrefix(path, "/") {
		return f, fmt.Errorf("want /PATH=STATUS")
	}
	status, after, _ := strings.Cut(answer, ",")
	f = tlsorigin.Forced{Path: path, RetryAfter: after}
	if f.Status, err = strconv.Atoi(status); err != nil {
		return f, fmt.Errorf("status: %w", err)
	}
	return f, nil
}
