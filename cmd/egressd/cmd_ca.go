// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/trust"
	"github.com/egressd/egressd/userspace/terminate"
)

// caFlags are those of every ca command.
type caFlags struct {
	dir  string
	root string
}

// at is path below the root.
func (f *caFlags) at(path string) string {
	if f.root == "" {
		return path
	}
	return filepath.Join(f.root, path)
}

func newCACommand(e *env) *cobra.Command {
	f := &caFlags{}
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "the host's certificate authority, for budgets that terminate TLS",
		Long: `The host's own certificate authority. egressd signs with it what clients are
shown where a budget says tls: {mode: terminate}. Clients must trust it, and
whoever has its key can read their traffic: it is made on this host, its key is
root's alone, and --permit-dns limits what it can sign.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("ca needs init, show, install or uninstall")
		},
	}
	cmd.PersistentFlags().StringVar(&f.dir, "dir", terminate.DefaultDir, "folder of the authority")
	cmd.PersistentFlags().StringVar(&f.root, "root", "", "take all paths below this folder instead of /")
	cmd.AddCommand(newCAInitCommand(e, f), newCAShowCommand(e, f), newCAInstallCommand(e, f), newCAUninstallCommand(e, f))
	return cmd
}

func newCAInitCommand(e *env, f *caFlags) *cobra.Command {
	var domains, networks []string
	var replace bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "make the authority: a key of its own, a certificate for two years",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			opt := terminate.AuthorityOptions{PermitDNS: domains}
			for _, n := range networks {
				p, err := parseNetwork(n)
				if err != nil {
					return &usageError{err}
				}
				opt.PermitIP = append(opt.PermitIP, p)
			}
			return initCA(e, f, opt, replace)
		}),
	}
	cmd.Flags().StringSliceVar(&domains, "permit-dns", nil, "domain that it may sign for, with all below it; all names if not given")
	cmd.Flags().StringSliceVar(&networks, "permit-ip", nil, "address or network that it may sign for, beside --permit-dns")
	cmd.Flags().BoolVar(&replace, "replace", false, "throw away the authority that is there, if it is installed nowhere")
	return cmd
}

// parseNetwork reads an address or a network.
func parseNetwork(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("--permit-ip %q is no address and no network", s)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

func initCA(e *env, f *caFlags, opt terminate.AuthorityOptions, replace bool) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("ask for the name of this host: %w", err)
	}
	opt.Host = host
	if replace {
		if err := removeCA(f); err != nil {
			return err
		}
	}
	ca, err := terminate.CreateAuthority(f.at(f.dir), opt)
	if errors.Is(err, terminate.ErrAuthorityExists) {
		return fmt.Errorf("%w; egressd ca show tells about it, --replace makes a new one", err)
	}
	if err != nil {
		return err
	}
	if err := describeCA(e, f, ca.Certificate()); err != nil {
		return err
	}
	_, err = fmt.Fprintln(e.stdout, "nothing trusts it yet; next: egressd ca install")
	return err
}

// removeCA removes the authority's files. One that is trusted somewhere stays:
// without its record nobody could undo that.
func removeCA(f *caFlags) error {
	installed, err := trust.Installed(f.root, f.dir)
	if err != nil {
		return err
	}
	if installed {
		return errors.New("the authority is installed; take it away first: egressd ca uninstall")
	}
	for _, name := range []string{terminate.KeyFile, terminate.CertFile} {
		if err := os.Remove(filepath.Join(f.at(f.dir), name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("replace the authority: %w", err)
		}
	}
	return nil
}

// openStores opens the stores of the authority.
func openStores(f *caFlags) (*trust.Stores, error) {
	s, err := trust.Open(f.root, f.dir)
	if errors.Is(err, terminate.ErrNoAuthority) {
		return nil, fmt.Errorf("%w; make one: sudo egressd ca init", err)
	}
	return s, err
}

// caReport is what ca show prints for programs.
type caReport struct {
	Path        string        `json:"path"`
	Name        string        `json:"name"`
	Fingerprint string        `json:"fingerprint"`
	NotAfter    time.Time     `json:"not_after"`
	PermitDNS   []string      `json:"permit_dns"`
	PermitIP    []string      `json:"permit_ip"`
	Installed   []trust.Place `json:"installed"`
}

func newCAShowCommand(e *env, f *caFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "tell about the authority and where it is installed",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			s, err := openStores(f)
			if err != nil {
				return err
			}
			places := s.Places(cmd.Context())
			if asJSON {
				return e.printJSON(reportCA(s, places))
			}
			if err := describeCA(e, f, s.Certificate()); err != nil {
				return err
			}
			return printPlaces(e, places)
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func reportCA(s *trust.Stores, places []trust.Place) caReport {
	cert := s.Certificate()
	r := caReport{
		Path: s.CertFile(), Name: cert.Subject.CommonName, Fingerprint: terminate.Fingerprint(cert), NotAfter: cert.NotAfter,
		PermitDNS: append([]string{}, cert.PermittedDNSDomains...), PermitIP: []string{}, Installed: append([]trust.Place{}, places...),
	}
	for _, n := range cert.PermittedIPRanges {
		r.PermitIP = append(r.PermitIP, n.String())
	}
	return r
}

// describeCA prints what people want to know of the authority.
func describeCA(e *env, f *caFlags, cert *x509.Certificate) error {
	_, err := fmt.Fprintf(e.stdout, "%s\n  file         %s\n  SHA-256      %s\n  valid until  %s\n  signs for    %s\n",
		cert.Subject.CommonName, filepath.Join(f.dir, terminate.CertFile), terminate.Fingerprint(cert),
		cert.NotAfter.UTC().Format(time.DateOnly), permitted(cert))
	return err
}

// permitted says in words what the authority may sign for.
func permitted(cert *x509.Certificate) string {
	if len(cert.PermittedDNSDomains) == 0 {
		return "any name and any address"
	}
	words := append([]string{}, cert.PermittedDNSDomains...)
	for _, n := range cert.PermittedIPRanges {
		words = append(words, n.String())
	}
	return strings.Join(words, ", ") + " and what is below"
}

func printPlaces(e *env, places []trust.Place) error {
	if len(places) == 0 {
		_, err := fmt.Fprintln(e.stdout, "installed nowhere")
		return err
	}
	for _, p := range places {
		state := "installed"
		if !p.Present {
			state = "missing or changed"
		}
		if _, err := fmt.Fprintf(e.stdout, "%s: %s in %s\n", state, p.Kind, p.Path); err != nil {
			return err
		}
	}
	return nil
}

// caTargets are where ca install is to install.
type caTargets struct {
	system    bool
	nss       bool
	databases []string
	bundle    string
}

func newCAInstallCommand(e *env, f *caFlags) *cobra.Command {
	var t caTargets
	cmd := &cobra.Command{
		Use:   "install",
		Short: "make clients trust the authority",
		Long: `Makes clients trust the authority:

  --system       the store of the host, which curl, wget, OpenSSL and Go use
  --nss          the databases of Chromium and Firefox of all users
  --bundle FILE  a file with the system's roots and the authority, for
                 programs that bring roots of their own, such as Python's
                 requests

and prints the variables by which other clients are told. What was installed is
written down, and egressd ca uninstall takes exactly that away.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			if !t.system && !t.nss && len(t.databases) == 0 && t.bundle == "" {
				return usagef("ca install needs --system, --nss, --nss-db or --bundle")
			}
			return installCA(cmd.Context(), e, f, &t)
		}),
	}
	cmd.Flags().BoolVar(&t.system, "system", false, "in the host's store")
	cmd.Flags().BoolVar(&t.nss, "nss", false, "in the databases of Chromium and Firefox of all users")
	cmd.Flags().StringArrayVar(&t.databases, "nss-db", nil, "in the database of NSS in this folder")
	cmd.Flags().StringVar(&t.bundle, "bundle", "", "write the system's roots and the authority to this file")
	return cmd
}

func installCA(ctx context.Context, e *env, f *caFlags, t *caTargets) error {
	s, err := openStores(f)
	if err != nil {
		return err
	}
	var done []trust.Place
	var failed []error
	install := func(p trust.Place, err error) {
		if err != nil {
			failed = append(failed, err)
			return
		}
		done = append(done, p)
	}
	if t.system {
		install(s.InstallSystem(ctx))
	}
	databases := t.databases
	if t.nss {
		found, err := s.FindNSS()
		if err == nil && len(found) == 0 {
			err = errors.New("no database of Chromium or Firefox was found; start them once, or name it by --nss-db")
		}
		if err != nil {
			failed = append(failed, err)
		}
		databases = append(databases, found...)
	}
	for _, db := range databases {
		install(s.InstallNSS(ctx, db))
	}
	bundle := ""
	if t.bundle != "" {
		p, err := s.InstallBundle(t.bundle)
		install(p, err)
		bundle = p.Path
	}
	if len(done) > 0 {
		if err := printPlaces(e, done); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(e.stdout, "variables for clients with stores of their own:"); err != nil {
			return err
		}
		for _, line := range trust.Environment(bundle, s.CertFile()) {
			if _, err := fmt.Fprintln(e.stdout, line); err != nil {
				return err
			}
		}
	}
	return errors.Join(failed...)
}

func newCAUninstallCommand(e *env, f *caFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "take the authority away from where ca install put it",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			s, err := openStores(f)
			if err != nil {
				return err
			}
			removed, err := s.Uninstall(cmd.Context())
			for _, p := range removed {
				if _, err := fmt.Fprintf(e.stdout, "removed: %s from %s\n", p.Kind, p.Path); err != nil {
					return err
				}
			}
			if err == nil && len(removed) == 0 {
				_, err = fmt.Fprintln(e.stdout, "installed nowhere")
			}
			return err
		}),
	}
}
