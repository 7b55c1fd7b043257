// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"debug/elf"
	"slices"

	"golang.org/x/arch/x86/x86asm"
)

// body is what decoding a function tells.
type body struct {
	returns []uint64 // addresses of its RET instructions
	targets []uint64 // addresses that it calls or jumps to outside of itself
}

// decode reads the whole code of a function that begins at vaddr. If any of it
// cannot be read with certainty, ok is false: a probe inside of an instruction
// or on a constant would break the program.
func decode(machine elf.Machine, code []byte, vaddr uint64) (b body, ok bool) {
	switch machine {
	case elf.EM_X86_64:
		ok = b.amd64(code, vaddr)
	case elf.EM_AARCH64:
		ok = b.arm64(code, vaddr)
	}
	return b, ok
}

func (b *body) amd64(code []byte, vaddr uint64) bool {
	for at := 0; at < len(code); {
		inst, err := x86asm.Decode(code[at:], 64)
		if err != nil || inst.Op == 0 {
			// A lone prefix stands for what could not be decoded.
			return false
		}
		if slices.ContainsFunc(inst.Prefix[:], func(p x86asm.Prefix) bool { return p.IsVEX() || p.IsEVEX() }) {
			return false // the decoder takes some of these for longer or shorter than they are
		}
		next := vaddr + uint64(at+inst.Len)
		switch inst.Op {
		case x86asm.RET:
			b.returns = append(b.returns, vaddr+uint64(at))
		case x86asm.LRET, x86asm.IRET, x86asm.IRETD, x86asm.IRETQ, x86asm.SYSRET:
			return false // nothing that a compiler makes of a method
		case x86asm.CALL, x86asm.JMP:
			if rel, ok := inst.Args[0].(x86asm.Rel); ok {
				b.leads(next+uint64(int64(rel)), code, vaddr)
			}
		}
		at += inst.Len
	}
	return true
}

// Instructions of arm64 (Arm Architecture Reference Manual, C4.1): RET by the
// link register is one fixed word; B and BL carry a distance in words of 26
// bits; LDR (literal) one of 19 bits, to a constant that stands in the code.
const (
	arm64Ret         = 0xd65f03c0
	arm64BranchMask  = 0x7c000000
	arm64Branch      = 0x14000000
	arm64LiteralMask = 0x3b000000
	arm64Literal     = 0x18000000
	arm64Widest      = 16 // bytes of the widest constant
)

func (b *body) arm64(code []byte, vaddr uint64) bool {
	if len(code)%4 != 0 || vaddr%4 != 0 {
		return false
	}
	constants := map[uint64]bool{}
	for at := 0; at < len(code); at += 4 {
		word, pc := le.Uint32(code[at:]), vaddr+uint64(at)
		if word&arm64LiteralMask == arm64Literal {
			to := pc + signed(word>>5, 19)*4
			for i := uint64(0); i < arm64Widest; i += 4 {
				constants[to+i] = true
			}
		}
	}
	for at := 0; at < len(code); at += 4 {
		word, pc := le.Uint32(code[at:]), vaddr+uint64(at)
		switch {
		case word == arm64Ret && constants[pc]:
			return false // a constant of this value, or a RET after a short one
		case word == arm64Ret:
			b.returns = append(b.returns, pc)
		case word&arm64BranchMask == arm64Branch:
			b.leads(pc+signed(word, 26)*4, code, vaddr)
		}
	}
	return true
}

// signed widens the lowest bits of v.
func signed(v uint32, bits uint) uint64 {
	return uint64(int64(int32(v<<(32-bits)) >> (32 - bits)))
}

func (b *body) leads(to uint64, code []byte, vaddr uint64) {
	if to-vaddr >= uint64(len(code)) {
		b.targets = append(b.targets, to)
	}
}
