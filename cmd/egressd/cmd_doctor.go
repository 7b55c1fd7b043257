// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/doctor"
	"github.com/egressd/egressd/loader/sight"
	"github.com/egressd/egressd/loader/sight/discover"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/userspace/keylog"
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	config string
	named  bool // config was named on the command line
	socket string
	pinDir string
	asJSON bool
}

func newDoctorCommand(e *env) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "find what is wrong with this machine, and what to do about it",
		Long: `doctor looks at the kernel, the cgroups, the programs of others, the policy file
and the daemon, and says of each what it found and what to do about it. Then it
tells of each process in the scope that speaks TLS how well it is seen, and how to
see it better.

It changes nothing. Without root, or without a daemon, it says what it could not
check. Its exit status is 1 if anything failed.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			o.named = cmd.Flags().Changed("config")
			return e.doctor(cmd.Context(), o)
		}),
	}
	configFlag(cmd, &o.config, defaultConfig)
	jsonFlag(cmd, &o.asJSON)
	flags := cmd.Flags()
	flags.StringVar(&o.socket, "socket", "", "admin socket of the daemon (default: that of the policy file)")
	flags.StringVar(&o.pinDir, "pin-dir", defaultPinDir, "where the daemon keeps its ledger; empty for nowhere")
	return cmd
}

func (e *env) doctor(ctx context.Context, o doctorOptions) error {
	cfg := doctor.Config{
		File: o.config, FileNamed: o.named, PinDir: o.pinDir,
		Policy: config.Default(), Sources: doctorSources(), Sight: flowSight,
		Probes: doctor.Probes{Unsafe: unsafeProbes, Price: sight.Price},
	}
	if p, err := config.Load(o.config); err != nil {
		cfg.PolicyErr = err
	} else {
		cfg.Policy = p
	}
	cfg.Daemon = admin.NewClient(cmp.Or(o.socket, cfg.Policy.Admin.Socket, config.DefaultSocket))
	report := doctor.Examine(ctx, cfg)
	var err error
	if o.asJSON {
		err = e.printJSON(report)
	} else {
		err = report.Write(e.stdout, e.width())
	}
	if err == nil && report.Failed() {
		return &statusError{status: statusFailed}
	}
	return err
}

// doctorSources are what tells of the processes of this machine.
func doctorSources() doctor.Sources { return doctor.Sources{KeyLog: keylog.Logs, Look: lookAt} }

// lookAt finds the TLS library of a process. The error is one of permission,
// or that the process has ended.
func lookAt(pid int) (doctor.Look, error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return doctor.Look{}, err
	}
	if err := maps.Close(); err != nil {
		return doctor.Look{}, fmt.Errorf("close memory map: %w", err)
	}
	s, why := discover.Look(pid)
	look := doctor.Look{Library: libraries[s.Kind], Name: s.Kind.String(), Probed: s.Probe}
	if !s.Probe {
		look.Why = why
	}
	return look, nil
}

// libraries are the kinds of TLS as far as remedies differ.
var libraries = map[discover.Kind]doctor.Library{
	discover.None:          doctor.NoTLS,
	discover.Foreign:       doctor.NoTLS,
	discover.OpenSSL:       doctor.OpenSSL,
	discover.HiddenOpenSSL: doctor.OpenSSL,
	discover.GnuTLS:        doctor.OpenSSL,
	discover.NSS:           doctor.OpenSSL,
	discover.Go:            doctor.GoTLS,
	discover.BoringSSL:     doctor.BoringSSL,
	discover.Rustls:        doctor.Rustls,
	discover.Java:          doctor.JavaTLS,
}

// unsafeProbes are the reasons why nothing should be probed here.
func unsafeProbes() ([]string, error) {
	host, err := discover.ReadHost()
	if err != nil {
		return nil, err
	}
	return discover.Unsafe(host, sight.OpenSSL), nil
}

// flowSight is how the inside of a flow is seen.
func flowSight(f admin.Flow) string { return f.Sight }
