// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/loader/pacer"
	"github.com/egressd/egressd/policy"
)

func TestPacing(t *testing.T) {
	counting := &policy.Policy{Budgets: []*policy.Budget{{Unit: policy.Connections}}}
	installing := &policy.Policy{Budgets: counting.Budgets, Qdisc: policy.QdiscFQ}
	eth0 := pacer.Device{
		Name: "eth0", Qdisc: "mq+fq", FQ: true, Horizon: time.Minute, Attached: "tcx", Routed: true, Paced: true, Ours: true,
		Foreign: []string{"theirs (id 7)"},
	}
	bond := pacer.Device{Name: "bond0", Qdisc: "noqueue", Lower: []string{"eth0", "eth1"}, Routed: true, Paced: true}
	plain := pacer.Device{Name: "eth2", Qdisc: "pfifo_fast", Routed: true, Why: "its qdisc is pfifo_fast, not fq"}
	bare := pacer.Device{Name: "eth3", Qdisc: "fq", FQ: true, Horizon: time.Minute, Routed: true, Why: "no program is attached"}
	short := pacer.Device{Name: "eth4", Qdisc: "fq", FQ: true, Horizon: time.Millisecond, Attached: "", Routed: true, Why: "too short"}
	for _, tt := range []struct {
		name    string
		policy  *policy.Policy
		found   pacing
		status  Status
		finding string
		remedy  string
	}{
		{"no budget of connections", &policy.Policy{Budgets: []*policy.Budget{{}, {Unit: policy.Connections, Mode: policy.Off}}}, pacing{}, OK, "not needed", ""},
		{"it cannot be seen", counting, pacing{err: errors.New("list devices: no")}, Warn, "not checked: list devices: no", "root"},
		{"no way out", counting, pacing{state: pacer.State{Devices: []pacer.Device{{Name: "eth9", FQ: true}}}}, OK, "no device leads out", ""},
		{"paced", counting, pacing{state: pacer.State{Devices: []pacer.Device{eth0, bond}}, running: true, privileged: true}, OK,
			"by fq at eth0 (mq+fq, tcx, for at most 1m0s, installed by egressd, before theirs (id 7)), bond0 (through eth0 and eth1)", ""},
		{"no daemon yet", counting, pacing{state: pacer.State{Devices: []pacer.Device{bare}}, privileged: true}, OK, "eth3 (fq, for at most 1m0s)", ""},
		{"not seen who is there", counting, pacing{state: pacer.State{Devices: []pacer.Device{bare}}, running: true}, OK, "eth3 (fq", ""},
		{"no program", counting, pacing{state: pacer.State{Devices: []pacer.Device{eth0, bare}}, running: true, privileged: true}, Warn, "fq is at eth3, but no program", "daemon's log"},
		{"no fq", counting, pacing{state: pacer.State{Devices: []pacer.Device{plain}}, fq: fqLoadable}, Warn,
			"no fq that waits at eth2 (pfifo_fast): connections are held by the proxy", "qdisc: fq into the policy file, or for each device: tc qdisc replace dev eth2 root fq"},
		{"no fq at one", counting, pacing{state: pacer.State{Devices: []pacer.Device{eth0, plain}}, running: true, privileged: true, fq: fqThere}, Warn,
			"they wait in the kernel at eth0", "tc qdisc replace dev eth2"},
		{"not installed yet", installing, pacing{state: pacer.State{Devices: []pacer.Device{plain}}}, Warn, "no fq that waits at eth2", "start the daemon"},
		{"left alone", installing, pacing{state: pacer.State{Devices: []pacer.Device{plain}}, running: true}, Warn, "no fq that waits at eth2", "left a device alone"},
		{"of no use", counting, pacing{state: pacer.State{Devices: []pacer.Device{short}}, running: true, privileged: true}, Warn, "no fq that waits at eth4 (fq, for at most 1ms)", "longer: tc qdisc replace dev eth4 root fq horizon 60s"},
		{"none in the kernel", installing, pacing{state: pacer.State{Devices: []pacer.Device{plain}}, fq: fqNone}, Warn, "held by the proxy", "CONFIG_NET_SCH_FQ"},
		{"not on the disk", installing, pacing{state: pacer.State{Devices: []pacer.Device{plain}}, fq: fqMissing}, Warn, "held by the proxy", "package"},
		{"no modules any more", installing, pacing{state: pacer.State{Devices: []pacer.Device{plain}}, fq: fqForbidden}, Warn, "held by the proxy", "modules_disabled"},
	} {
		c := tt.found.check(tt.policy)
		if c.Name != "pacing" || c.Status != tt.status || !strings.Contains(c.Finding, tt.finding) || !strings.Contains(c.Remedy, tt.remedy) ||
			(c.Status == OK) != (c.Remedy == "") || strings.Contains(c.Finding+c.Remedy, "\n") {
			t.Errorf("%s: got %+v, want %s, %q in the finding and %q in the remedy", tt.name, c, tt.status, tt.finding, tt.remedy)
		}
	}
}

func TestFindFQ(t *testing.T) {
	const release = "6.12.1-amd64"
	const dep = "kernel/net/sched/sch_fq_codel.ko.xz:\nkernel/net/sched/sch_fq.ko.xz:\n"
	const without = "kernel/net/sched/sch_fq_codel.ko:\n"
	zipped := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write([]byte(text))
		if err := errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  fqModule
	}{
		{"nothing", nil, fqUnknown},
		{"loaded", map[string]string{"sys/module/sch_fq/refcnt": "1\n"}, fqThere},
		{"built in, by the list", map[string]string{"lib/modules/" + release + "/modules.builtin": "kernel/net/sched/sch_fq.ko\n"}, fqThere},
		{"built in, by the configuration", map[string]string{"boot/config-" + release: "CONFIG_NET_SCH_FQ_CODEL=m\nCONFIG_NET_SCH_FQ=y\n"}, fqThere},
		{"built in, by the kernel itself", map[string]string{"proc/config.gz": zipped("CONFIG_NET_SCH_FQ=y\n")}, fqThere},
		{"module", map[string]string{"lib/modules/" + release + "/modules.dep": dep, "boot/config-" + release: "CONFIG_NET_SCH_FQ=m\n"}, fqLoadable},
		{"module, of an unknown configuration", map[string]string{"lib/modules/" + release + "/modules.dep": dep}, fqLoadable},
		{"modules are forbidden", map[string]string{
			"lib/modules/" + release + "/modules.dep": dep, "proc/sys/kernel/modules_disabled": "1\n",
		}, fqForbidden},
		{"modules are allowed", map[string]string{
			"lib/modules/" + release + "/modules.dep": dep, "proc/sys/kernel/modules_disabled": "0\n",
		}, fqLoadable},
		{"not on the disk", map[string]string{
			"lib/modules/" + release + "/modules.dep": without, "boot/config-" + release: "CONFIG_NET_SCH_FQ=m\n",
		}, fqMissing},
		{"not there, nobody knows why", map[string]string{"lib/modules/" + release + "/modules.dep": without}, fqUnknown},
		{"built without", map[string]string{"proc/config.gz": zipped("# CONFIG_NET_SCH_FQ_CODEL is not set\n# CONFIG_NET_SCH_FQ is not set\n")}, fqNone},
		{"of another release", map[string]string{"lib/modules/6.1/modules.dep": dep}, fqUnknown},
		{"no gzip", map[string]string{"proc/config.gz": "CONFIG_NET_SCH_FQ=y\n"}, fqUnknown},
	} {
		root := t.TempDir()
		for name, text := range tt.files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := findFQ(os.DirFS(root), release); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

// What is found of this machine agrees with itself: a kernel that was built
// without fq has no device with it.
func TestPacingOfThisMachine(t *testing.T) {
	found := lookAtPacing(0, examine(""), os.DirFS("/"))
	if found.err != nil {
		t.Fatal(found.err)
	}
	for _, d := range found.state.Devices {
		if d.FQ && found.fq == fqNone {
			t.Errorf("%s has fq, and the kernel has none", d.Name)
		}
	}
}
