// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// Index says which lane owns which cell. It lives and is pinned together with
// the ledger. The programs do not read it.
type Index struct {
	lanes *ebpf.Map
}

var _ policy.Index = Index{}

// Index returns the lane index of the ledger. Valid until Close.
func (k *Kernel) Index() Index { return Index{k.objs.Lanes} }

// Range calls f with every lane and the number of its cell until f reports
// false. The order means nothing. f may delete the lane that it was given.
// Records that make no sense are skipped, and deleted.
func (x Index) Range(f func(policy.LaneKey, uint32) bool) error {
	// Deleting during the iteration of a hash may start it over, so collect
	// first: the number of lanes is bounded by that of cells.
	var (
		hashes []egressLaneHash
		hash   egressLaneHash
	)
	value := new(egressLane)
	it := x.lanes.Iterate()
	for it.Next(&hash, value) {
		hashes = append(hashes, hash)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read lane index: %w", err)
	}
	for _, hash := range hashes {
		if err := x.lanes.Lookup(&hash, value); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("read lane index: %w", err)
		}
		key, ok := decodeLane(value)
		if !ok || hashLane(key) != hash {
			if err := x.lanes.Delete(&hash); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("delete broken lane record: %w", err)
			}
			continue
		}
		if !f(key, value.Cell) {
			return nil
		}
	}
	return nil
}

// Put says that the lane owns the cell, in place of what it owned before. The
// error wraps ErrIndexFull when there are as many lanes as cells already.
func (x Index) Put(key policy.LaneKey, cell uint32) error {
	value, ok := encodeLane(key, cell)
	if !ok {
		return fmt.Errorf("put lane %s: names longer than %d bytes", key, len(value.Names))
	}
	hash := hashLane(key)
	err := x.lanes.Update(&hash, value, ebpf.UpdateAny)
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("put lane %s: %w", key, ErrIndexFull)
	}
	if err != nil {
		return fmt.Errorf("put lane %s: %w", key, err)
	}
	return nil
}

// Delete says that the lane owns no cell. Deleting what is not there does
// nothing.
func (x Index) Delete(key policy.LaneKey) error {
	hash := hashLane(key)
	if err := x.lanes.Delete(&hash); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete lane %s: %w", key, err)
	}
	return nil
}

// hashLane is a cryptographic hash because clients choose parts of the names:
// nobody may make two lanes meet.
func hashLane(key policy.LaneKey) egressLaneHash {
	h := sha256.New()
	for _, part := range []string{key.Budget, key.Destination, tail(key)} {
		var length [4]byte
		binary.LittleEndian.PutUint32(length[:], uint32(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	var hash egressLaneHash
	copy(hash.Bytes[:], h.Sum(nil))
	return hash
}

func encodeLane(key policy.LaneKey, cell uint32) (*egressLane, bool) {
	value := &egressLane{Cell: cell}
	exit := tail(key)
	if len(key.Budget)+len(key.Destination)+len(exit) > len(value.Names) {
		return value, false
	}
	value.BudgetLen = uint16(len(key.Budget))
	value.DestinationLen = uint16(len(key.Destination))
	value.ExitLen = uint16(len(exit))
	n := copy(value.Names[:], key.Budget)
	n += copy(value.Names[n:], key.Destination)
	copy(value.Names[n:], exit)
	return value, true
}

// tail is what the record keeps behind the destination: the exit, and session
// and path where the lane has them, as the lane's id writes them.
func tail(key policy.LaneKey) string {
	if key.Session == "" && key.Path == "" {
		return key.Exit
	}
	key.Budget, key.Destination = "b", ""
	return key.String()[len("b/-/"):]
}

func decodeLane(value *egressLane) (policy.LaneKey, bool) {
	budget := int(value.BudgetLen)
	destination := budget + int(value.DestinationLen)
	exit := destination + int(value.ExitLen)
	if exit > len(value.Names) {
		return policy.LaneKey{}, false
	}
	key := policy.LaneKey{
		Budget:      string(value.Names[:budget]),
		Destination: string(value.Names[budget:destination]),
		Exit:        string(value.Names[destination:exit]),
	}
	if strings.Contains(key.Exit, ";") {
		rest, err := policy.ParseLaneKey("b/-/" + key.Exit)
		if err != nil {
			return policy.LaneKey{}, false
		}
		key.Exit, key.Session, key.Path = rest.Exit, rest.Session, rest.Path
	}
	return key, true
}
