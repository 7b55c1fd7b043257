// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/keeper"
	"github.com/egressd/egressd/cmd/egressd/internal/launch"
	"github.com/egressd/egressd/cmd/egressd/internal/sysunit"
	"github.com/egressd/egressd/cmd/egressd/internal/table"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/userspace/keylog"
)

// observeOptions are the flags of observe and its commands.
type observeOptions struct {
	dir     string
	root    string
	user    string
	envFile string
	json    bool
}

func newObserveCommand(e *env) *cobra.Command {
	var o observeOptions
	cmd := &cobra.Command{
		Use:   "observe",
		Short: "have services write their TLS keys, so that their requests are seen",
		Long: `observe has services write their TLS keys to egressd, so that each of their
HTTPS requests is seen and paced. Nothing of what they send is changed.

  sudo egressd observe install crawler     the service crawler, from its next start
  sudo egressd observe show                who writes keys, and what has come`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("observe needs install, uninstall, show or pipe")
		},
	}
	cmd.PersistentFlags().StringVar(&o.dir, "key-dir", config.DefaultKeyDir, "folder of the pipes, tls.key_dir of the policy file")
	cmd.AddCommand(newObserveInstall(e, &o), newObserveUninstall(e, &o), newObserveShow(e, &o), newObservePipe(e, &o))
	return cmd
}

func newObserveInstall(e *env, o *observeOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install UNIT",
		Short: "have a systemd service write its keys from its next start on",
		Long: `install writes a drop-in for the service, /etc/systemd/system/UNIT.d/` + dropIn + `.
At each start of the service it makes a pipe for its user and tells the service
of it. A service that has set SSLKEYLOGFILE itself keeps that.

Should egressd be gone one day, the service starts as if the drop-in were not
there.`,
		Args: cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error { return e.observeInstall(*o, args[0]) }),
	}
	rootFlag(cmd, o)
	cmd.Flags().StringVar(&o.user, "user", "", "who the service's processes run as, if not its User=")
	return cmd
}

func newObserveUninstall(e *env, o *observeOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uninstall UNIT",
		Short: "undo install, from the service's next start on",
		Args:  cobra.ExactArgs(1),
		RunE:  does(func(_ *cobra.Command, args []string) error { return e.observeUninstall(*o, args[0]) }),
	}
	rootFlag(cmd, o)
	return cmd
}

func newObserveShow(e *env, o *observeOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "pipes, who writes to them, and what has come",
		Args:  cobra.NoArgs,
		RunE:  does(func(*cobra.Command, []string) error { return e.observeShow(*o) }),
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func newObservePipe(e *env, o *observeOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pipe NAME --user USER",
		Short: "make a pipe for the keys of a user's processes",
		Long: `pipe makes a pipe that USER may write keys to, and prints its path, for
SSLKEYLOGFILE. It is safe to write to whether or not the daemon runs.`,
		Args: cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error { return e.observePipe(*o, args[0]) }),
	}
	cmd.Flags().StringVar(&o.user, "user", "", "who may write to it: a name or a number")
	cmd.Flags().StringVar(&o.envFile, "env-file", "", "file to write the variables to that a service needs, for EnvironmentFile=")
	return cmd
}

// rootFlag gives a command that changes files of the host its --root.
func rootFlag(cmd *cobra.Command, o *observeOptions) {
	cmd.Flags().StringVar(&o.root, "root", "/", "folder that is taken for the root of the file system")
}

// dropIn is the name of the file by which a service writes keys.
const dropIn = "50-egressd-keys.conf"

// unitFile is the name of a service, and the path of its drop-in.
func unitFile(o observeOptions, name string) (unit, path string, err error) {
	if unit, err = sysunit.Service(name); err != nil {
		return "", "", &usageError{err}
	}
	return unit, filepath.Join(o.root, "etc/systemd/system", unit+".d", dropIn), nil
}

// pipeName is the name of the pipe of a service. Instances of a template that
// are installed one by one may have characters in theirs that pipes have not.
func pipeName(unit string) string {
	return strings.Map(func(c rune) rune {
		if c == '\\' {
			return '_'
		}
		return c
	}, strings.TrimSuffix(unit, ".service"))
}

func (e *env) observeInstall(o observeOptions, name string) error {
	unit, path, err := unitFile(o, name)
	if err != nil {
		return err
	}
	if err := checkKeyDir(o.dir); err != nil {
		return err
	}
	found, err := sysunit.Find(o.root, unit)
	if err != nil {
		return err
	}
	user := o.user
	if user == "" {
		user = found.User
	}
	if strings.ContainsAny(user, " \t\n\"'%$\\") || strings.HasPrefix(user, "-") {
		return fmt.Errorf("user %q of %s is not known before it starts; name the one with --user", user, unit)
	}
	self, err := e.self()
	if err != nil {
		return err
	}
	if resolved, err := filepath.EvalSymlinks(self); err == nil {
		self = resolved
	}
	if strings.ContainsAny(self, " \t\n\"'%$\\;") {
		return fmt.Errorf("install egressd elsewhere: systemd would misread its path %q", self)
	}
	pipe := pipeName(unit)
	envFile := filepath.Join(o.dir, ".env-"+pipe)
	text := fmt.Sprintf(`# Written by egressd observe install; egressd observe uninstall %[1]s removes it.
# The first line makes the pipe and writes the file that the second one reads.
# Neither failing keeps the service from starting.
[Service]
ExecStartPre=-+%[2]s observe pipe %[3]s --user %[4]s --key-dir %[5]s --env-file %[6]s
EnvironmentFile=-%[6]s
`, strings.TrimSuffix(unit, ".service"), self, pipe, user, o.dir, envFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder of drop-in: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write drop-in: %w", err)
	}
	_, err = fmt.Fprintf(e.stdout, "wrote %s, for keys that user %s writes\nfrom its next start on: systemctl daemon-reload && systemctl restart %s\n", path, user, unit)
	return err
}

func (e *env) observeUninstall(o observeOptions, name string) error {
	unit, path, err := unitFile(o, name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s was not installed: there is no %s", unit, path)
	} else if err != nil {
		return fmt.Errorf("remove drop-in: %w", err)
	}
	// With other drop-ins in it, it stays.
	_ = os.Remove(filepath.Dir(path))
	_, err = fmt.Fprintf(e.stdout, "removed %s\nfrom its next start on: systemctl daemon-reload && systemctl restart %s\n", path, unit)
	return err
}

// checkKeyDir refuses folders that systemd or Node would misread.
func checkKeyDir(dir string) error {
	if !filepath.IsAbs(dir) || strings.ContainsAny(dir, " \t\n\"'%$\\") {
		return usagef("--key-dir %q: write an absolute path without spaces, quotes, backslashes, $ and %%", dir)
	}
	return nil
}

func (e *env) observePipe(o observeOptions, name string) (err error) {
	if o.user == "" {
		return usagef("observe pipe needs --user, who will write to the pipe")
	}
	if err := keylog.CheckName(name); err != nil {
		return &usageError{err}
	}
	uid, err := launch.UID(o.user)
	if err != nil {
		return err
	}
	self, err := e.self()
	if err != nil {
		return err
	}
	folder, err := keylog.OpenFolder(o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	path, err := folder.Make(name, uid, false)
	if err != nil {
		return err
	}
	if _, err := keeper.Start(folder, self, true); err != nil {
		// Without a keeper a client might wait for ever: rather no keys.
		return errors.Join(err, folder.Change(folder.Retire))
	}
	if o.envFile != "" {
		return e.writeEnvFile(o.envFile, path)
	}
	_, err = fmt.Fprintln(e.stdout, path)
	return err
}

// writeEnvFile writes what changes in the environment of this process, which
// systemd gave it as it will give it to the service, so that keys go to pipe.
func (e *env) writeEnvFile(file, pipe string) error {
	env, own := launch.LogKeys(e.environ(), pipe)
	var text strings.Builder
	text.WriteString("# Written by egressd observe pipe at each start of the service.\n")
	if own != "" {
		fmt.Fprintf(&text, "# The service writes its keys to %q and goes on to.\n", own)
	} else {
		for _, v := range env {
			name, value, _ := strings.Cut(v, "=")
			if name == keylog.Variable || name == keylog.NodeVariable {
				fmt.Fprintf(&text, "%s=%s\n", name, sysunit.QuoteEnv(value))
			}
		}
	}
	// The old one, of another kind maybe, must not be written through.
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace environment file: %w", err)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("write environment file: %w", err)
	}
	return nil
}

// observed is what observe show tells.
type observed struct {
	Dir      string         `json:"dir"`
	Daemon   bool           `json:"daemon"` // one reads the pipes
	Keeper   bool           `json:"keeper"` // one sees to it that no client waits
	Pipes    []observedPipe `json:"pipes"`
	Unwanted uint64         `json:"unwanted"` // sessions that nobody asked for
	Garbage  uint64         `json:"garbage"`  // lines that are none
}

type observedPipe struct {
	Name     string    `json:"name"`
	UID      uint32    `json:"uid"`
	Retired  bool      `json:"retired,omitempty"` // it leads nowhere, as no daemon runs
	Sessions uint64    `json:"sessions"`
	Garbage  uint64    `json:"garbage"`
	Told     []process `json:"told"` // processes that were told to write to it
}

type process struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
}

func (e *env) observeShow(o observeOptions) error {
	s, err := observe(o.dir)
	if err != nil {
		return err
	}
	if o.json {
		return e.printJSON(s)
	}
	_, err = fmt.Fprint(e.stdout, s.format(e.width()))
	return err
}

// observe looks at a folder of pipes and at all processes.
func observe(dir string) (s observed, err error) {
	s = observed{Dir: dir, Pipes: []observedPipe{}}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return s, nil // to look must not make it
	}
	folder, err := keylog.OpenFolder(dir)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	entries, err := folder.Entries()
	if err != nil {
		return s, err
	}
	if s.Daemon, err = folder.Held(keylog.Daemon); err != nil {
		return s, err
	}
	if s.Keeper, err = folder.Held(keylog.Keeper); err != nil {
		return s, err
	}
	counts, err := keeper.ReadCounts(dir)
	if err != nil {
		return s, err
	}
	s.Unwanted, s.Garbage = counts.Unwanted, counts.Garbage
	told, err := writers()
	if err != nil {
		return s, err
	}
	for _, entry := range entries {
		p := observedPipe{Name: entry.Name, UID: entry.UID, Retired: !entry.Pipe, Told: told[folder.Pipe(entry.Name)]}
		if p.Told == nil {
			p.Told = []process{}
		}
		for _, c := range counts.Pipes {
			if c.Name == entry.Name { // a pipe that was replaced has a line of its own
				p.Sessions += c.Sessions
				p.Garbage += c.Garbage
			}
		}
		s.Pipes = append(s.Pipes, p)
	}
	return s, nil
}

// writers finds the processes that were told to write keys, by file.
func writers() (map[string][]process, error) {
	pids, err := launch.PIDs()
	if err != nil {
		return nil, err
	}
	found := make(map[string][]process)
	for _, pid := range pids {
		if path, ok := keylog.Logs(pid); ok {
			found[path] = append(found[path], process{pid, launch.Comm(pid)})
		}
	}
	return found, nil
}

// format is what observe show says to people.
func (s observed) format(width int) string {
	var out strings.Builder
	switch {
	case len(s.Pipes) == 0:
		fmt.Fprintf(&out, "no pipes in %s; make one with: sudo egressd observe install UNIT\n", s.Dir)
		return out.String()
	case !s.Daemon && s.Keeper:
		fmt.Fprintf(&out, "no daemon reads %s; what clients write is dropped\n", s.Dir)
	case !s.Daemon:
		fmt.Fprintf(&out, "no daemon reads %s\n", s.Dir)
	case !s.Keeper:
		fmt.Fprintf(&out, "%s has no keeper; the daemon starts one within a second\n", s.Dir)
	}
	rows := make([][]string, len(s.Pipes))
	for i, p := range s.Pipes {
		rows[i] = []string{p.Name, launch.UserName(p.UID), fmt.Sprint(p.Sessions), fmt.Sprint(p.Garbage), commands(p.Told)}
		if p.Retired {
			rows[i][4] = "leads nowhere"
		}
	}
	// A strings.Builder never fails.
	_ = table.Write(&out, width, []table.Column{
		{Title: "PIPE"}, {Title: "USER"}, {Title: "SESSIONS", Right: true}, {Title: "GARBAGE", Right: true},
		{Title: "TOLD TO WRITE", Flex: true},
	}, rows)
	return out.String()
}

// commands lists processes: "python3 (3), node".
func commands(all []process) string {
	count := make(map[string]int)
	var order []string
	for _, p := range all {
		if count[p.Command]++; count[p.Command] == 1 {
			order = append(order, p.Command)
		}
	}
	for i, name := range order {
		if n := count[name]; n > 1 {
			order[i] = fmt.Sprintf("%s (%d)", name, n)
		}
	}
	if len(order) == 0 {
		return "nobody"
	}
	return strings.Join(order, ", ")
}

// newKeeperCommand is the process that stays by the pipes.
func newKeeperCommand(*env) *cobra.Command {
	var linger time.Duration
	cmd := &cobra.Command{
		Use:    keeper.CommandName + " DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			keeper.Spare()
			// Its standard error may be a pipe whose reader is gone.
			signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			return runKeeper(ctx, args[0], linger)
		}),
	}
	cmd.Flags().DurationVar(&linger, "linger", 0, "how long to stay without a daemon and without clients; 1m if 0")
	return cmd
}

func runKeeper(ctx context.Context, dir string, linger time.Duration) error {
	return keeper.Run(ctx, dir, keeper.Config{Linger: linger})
}
