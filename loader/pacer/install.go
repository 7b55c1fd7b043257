// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ourHandle is the handle of the root qdiscs that are installed here, "ed00:" in
// the words of tc. The kernel gives numbers from 8001: on by itself.
const ourHandle = 0xed00_0000

// ourHorizon is how far ahead fq takes packets. The kernel's own choice of 10 s
// is less than requests wait by default.
const ourHorizon = 60 * time.Second

// reinstallAfter is the least time between two attempts at one device: who takes
// the qdisc away, or a kernel that has none, is not fought.
const reinstallAfter = 30 * time.Second

// lookAgainAfter is the time after which a kernel that had no fq is asked again:
// its module may have come to the disk.
const lookAgainAfter = 10 * time.Minute

func (d *device) isOurs() bool {
	return d.root.handle == ourHandle && (d.root.kind == "mq" || d.root.kind == "fq" && d.root.horizon == ourHorizon)
}

// installer puts fq at devices and takes it off again.
type installer struct {
	h   *netlink.Handle
	log *slog.Logger
	// tried and failed are of devices by index. failed has what keeps fq away.
	tried  map[int]time.Time
	failed map[int]error
	// lacks, if not nil, says that the kernel has no fq. Each attempt at a
	// device with several queues would lose packets, so there are none until
	// lacksUntil.
	lacks      error
	lacksUntil time.Time
}

// install puts fq at all devices that routes use and where the kernel chose the
// qdisc. It reports whether it changed anything.
//
// A device without a queue is left alone unless a default route uses it: a
// qdisc costs every packet between containers a lock, and what is paced is
// traffic to the outside. What is queued at the moment in which a qdisc is
// replaced is lost, as with any change of it.
func (i *installer) install(s *survey, now time.Time) (changed bool) {
	uses := s.uses()
	clear(i.failed)
	for _, index := range slices.Sorted(maps.Keys(uses)) {
		d := s.links[index]
		if d == nil || !d.up || d.loopback || s.lower(d) != nil {
			continue // what is below a device is among those used
		}
		if _, fq := d.fq(); fq {
			continue
		}
		if err := mayInstall(d, uses[index].byDefault); err != nil {
			i.failed[index] = err
			continue
		}
		if i.lacks != nil && now.Before(i.lacksUntil) {
			i.failed[index] = i.lacks
			continue
		}
		if last, again := i.tried[index]; again && now.Sub(last) < reinstallAfter {
			i.failed[index] = errors.New("its fq was taken away, or could not be installed; it is tried again later")
			continue
		}
		i.tried[index] = now
		changed = true
		if err := i.put(d); err != nil {
			i.failed[index] = err
			if errors.Is(err, unix.ENOENT) {
				i.lacks, i.lacksUntil = err, now.Add(lookAgainAfter)
			}
			i.log.Warn("fq cannot be installed", "device", d.name, "err", err)
			continue
		}
		i.log.Info("fq installed", "device", d.name, "before", d.words())
	}
	return changed
}

// mayInstall says why the qdisc of a device is not to be changed.
func mayInstall(d *device, byDefault bool) error {
	switch {
	case d.isOurs():
		return nil // of which a queue is not fq yet
	case d.root.handle != 0:
		return fmt.Errorf("its qdisc %s %x: was set by somebody and stays", d.words(), d.root.handle>>16)
	case d.root.kind == "mq" && slices.ContainsFunc(d.leaves, func(q qdisc) bool { return q.handle != 0 }):
		return fmt.Errorf("its qdisc %s has a part that was set by somebody and stays", d.words())
	case d.root.kind != "mq" && len(d.leaves) > 0:
		return fmt.Errorf("its qdisc %s has parts of its own and stays", d.words())
	case d.root.kind == "noqueue" && !byDefault:
		return errors.New("it has no queue, and no default route uses it")
	case d.queueLength == 0:
		// The kernel would set it to 1000 for good.
		return errors.New("the length of its queue is 0 and stays")
	}
	return nil
}

// put installs fq: at the root, or below an mq, so that queues of the hardware
// stay apart.
func (i *installer) put(d *device) error {
	if d.root.kind != "mq" {
		return i.add(newFQ(d.index, netlink.HANDLE_ROOT, ourHandle))
	}
	if !d.isOurs() {
		root := netlink.QdiscAttrs{LinkIndex: d.index, Parent: netlink.HANDLE_ROOT, Handle: ourHandle}
		if err := i.add(&netlink.GenericQdisc{QdiscAttrs: root, QdiscType: "mq"}); err != nil {
			return err
		}
	}
	for _, leaf := range d.leaves {
		if d.isOurs() && leaf.kind == "fq" {
			continue
		}
		parent := uint32(ourHandle) | leaf.parent&^majorMask
		if err := i.add(newFQ(d.index, parent, 0)); err != nil {
			if d.isOurs() {
				return err
			}
			// All or nothing: half of it would be of no use.
			return errors.Join(err, i.remove(d))
		}
	}
	return nil
}

func newFQ(index int, parent, handle uint32) *netlink.Fq {
	fq := netlink.NewFq(netlink.QdiscAttrs{LinkIndex: index, Parent: parent, Handle: handle})
	fq.Horizon = uint32(ourHorizon / time.Microsecond)
	return fq
}

// add adds a qdisc in the place of one with handle 0. The kernel refuses with
// EEXIST if there is another one meanwhile.
func (i *installer) add(q netlink.Qdisc) error {
	switch err := i.h.QdiscAdd(q); {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("this kernel has no qdisc %s (CONFIG_NET_SCH_FQ): %w", q.Type(), err)
	case err != nil:
		return fmt.Errorf("add qdisc %s: %w", q.Type(), err)
	}
	return nil
}

// remove takes the root qdisc off, if it is still ours by its handle. The kernel
// then puts its own choice there, as it did when the device came up first.
func (i *installer) remove(d *device) error {
	root := netlink.QdiscAttrs{LinkIndex: d.index, Parent: netlink.HANDLE_ROOT, Handle: ourHandle}
	switch err := i.h.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: root, QdiscType: d.root.kind}); {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return nil // the device is gone, or the qdisc is no longer ours
	case err != nil:
		return fmt.Errorf("remove qdisc of %s: %w", d.name, err)
	}
	i.log.Info("qdisc of the kernel restored", "device", d.name)
	return nil
}

// restore removes all that was ever installed. It reports whether there was any.
func (i *installer) restore(s *survey) (changed bool, err error) {
	var errs []error
	for _, d := range s.links {
		if d.isOurs() {
			changed = true
			errs = append(errs, i.remove(d))
		}
	}
	clear(i.tried)
	clear(i.failed)
	i.lacks = nil
	return changed, errors.Join(errs...)
}
