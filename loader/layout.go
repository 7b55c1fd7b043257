// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"

	"github.com/cilium/ebpf/btf"

	"github.com/egressd/egressd/policy/ledger"
)

// checkCell compares the cell of the programs with that of package ledger.
// The other structs are generated from the object and cannot differ.
func checkCell(types *btf.Spec) error {
	var cell *btf.Struct
	if err := types.TypeByName("cell", &cell); err != nil {
		return fmt.Errorf("find struct cell in the programs: %w", err)
	}
	if cell.Size != ledger.CellSize {
		return fmt.Errorf("struct cell has %d bytes in the programs, %d in the daemon", cell.Size, ledger.CellSize)
	}
	return nil
}
