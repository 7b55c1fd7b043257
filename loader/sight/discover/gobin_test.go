// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/loader/sight"
)

// objdump returns the probes of a program with symbols as the Go project's own
// disassembler sees it.
func objdump(t *testing.T, program, fullName, symbol string) sight.Probe {
	t.Helper()
	out := mustRun(t, "", nil, "go", "tool", "objdump", "-s", "^"+regexp.QuoteMeta(fullName)+"$", program)
	file, err := elf.NewFile(mustOpen(t, program))
	if err != nil {
		t.Fatal(err)
	}
	p := sight.Probe{Symbol: symbol}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[1], "0x") {
			continue
		}
		addr, err := strconv.ParseUint(fields[1], 0, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, prog := range file.Progs {
			if prog.Type == elf.PT_LOAD && addr >= prog.Vaddr && addr < prog.Vaddr+prog.Filesz {
				addr += prog.Off - prog.Vaddr
				break
			}
		}
		if p.Entry == 0 {
			p.Entry = addr
		}
		if fields[3] == "RET" {
			p.Returns = append(p.Returns, addr)
		}
	}
	if p.Entry == 0 || len(p.Returns) == 0 {
		t.Fatalf("objdump of %s in %s has no code:\n%s", fullName, program, out)
	}
	return p
}

func onlyTarget(t *testing.T, c Contents, lib sight.Library) sight.Target {
	t.Helper()
	if len(c.Targets) != 1 || c.Targets[0].Library != lib {
		t.Fatalf("got %+v, want one target of %s", c, lib)
	}
	return c.Targets[0]
}

// Wherever a program has its functions from, with symbols or without, the
// probes are those that the disassembler finds in the one with symbols: what
// is stripped moves no code.
func TestGoPrograms(t *testing.T) {
	for _, b := range []goBuild{
		{}, {mode: "pie"}, {arch: "arm64"}, {cgo: true}, {mode: "pie", cgo: true},
	} {
		t.Run(b.String(), func(t *testing.T) {
			plain := mustBuildGo(t, b)
			b.ldflags = "-s -w"
			stripped := mustBuildGo(t, b)
			want := []sight.Probe{
				objdump(t, plain, "crypto/tls.(*Conn).Read", "tls.(*Conn).Read"),
				objdump(t, plain, "crypto/tls.(*Conn).Write", "tls.(*Conn).Write"),
				objdump(t, plain, "example.org/client/utls.(*Conn).Read", "tls.(*Conn).Read"),
				objdump(t, plain, "example.org/client/utls.(*Conn).Write", "tls.(*Conn).Write"),
				// UConn.Read only leads to Conn.Read.
				objdump(t, plain, "example.org/client/utls.(*UConn).Write", "tls.(*UConn).Write"),
			}
			slices.SortFunc(want, func(a, b sight.Probe) int { return int(int64(a.Entry - b.Entry)) })
			for _, program := range []string{plain, stripped} {
				got := onlyTarget(t, mustInspect(t, program), sight.GoTLS).Probes
				if fmt.Sprintf("%x", got) != fmt.Sprintf("%x", want) {
					t.Errorf("got  %x\nwant %x", got, want)
				}
			}
		})
	}
}

// The functions are found twice in a program with symbols: by them, and by the
// table that stays when they are gone.
func TestPclntabAgreesWithSymbols(t *testing.T) {
	m, err := newImage(&source{r: mustOpen(t, mustBuildGo(t, goBuild{})), left: readBudget})
	if err != nil {
		t.Fatal(err)
	}
	names := ending(").Read", ").Write", "main.main")
	table, err := newPclntab(m)
	if err != nil {
		t.Fatal(err)
	}
	bySymbols, err1 := m.symbols(elf.SHT_SYMTAB, names)
	byTable, err2 := table.symbols(names)
	if err1 != nil || err2 != nil || len(bySymbols) < 30 {
		t.Fatalf("%d functions, %v, %v", len(bySymbols), err1, err2)
	}
	for _, s := range bySymbols {
		// The table ends a function where the next begins, so padding counts.
		if !slices.ContainsFunc(byTable, func(o symbol) bool {
			return o.vaddr == s.vaddr && o.size >= s.size && o.size < s.size+64 && o.name == s.name
		}) {
			t.Errorf("%+v is not in the table", s)
		}
	}
	if len(byTable) < len(bySymbols) {
		t.Errorf("the table has %d, the symbols %d", len(byTable), len(bySymbols))
	}
}

func TestGoWithoutTLS(t *testing.T) {
	c := mustInspect(t, mustFind(t, "go"))
	if !c.Go {
		t.Errorf("go itself: got %+v, want a Go program", c)
	}
	dir := t.TempDir()
	mustWrite(t, dir+"/go.mod", "module example.org/none\n\ngo 1.26\n")
	mustWrite(t, dir+"/main.go", "package main\n\nfunc main() {}\n")
	mustRun(t, dir, []string{"CGO_ENABLED=0", "GOWORK=off"}, "go", "build", "-o", "none", ".")
	if c := mustInspect(t, dir+"/none"); !c.Go || len(c.Targets) > 0 || c.Doubt != "" {
		t.Errorf("a program without TLS: got %+v, want Go and nothing else", c)
	}
}

// Every function of a program, vector instructions of the standard library's
// assembly among them: what is decoded at all has exactly
// the RETs that another disassembler finds.
func TestReturnsAgainstObjdump(t *testing.T) {
	program := mustBuildGo(t, goBuild{})
	returns := map[uint64]bool{}
	for line := range strings.Lines(mustRun(t, "", nil, mustFind(t, "objdump"), "-d", program)) {
		parts := strings.Split(line, "\t")
		if len(parts) < 3 {
			continue
		}
		if op := strings.Fields(parts[2]); len(op) == 0 || op[0] != "ret" && op[0] != "retq" {
			continue
		}
		addr, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(parts[0]), ":"), 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		returns[addr] = true
	}
	m, err := newImage(&source{r: mustOpen(t, program), left: readBudget})
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.NewFile(mustOpen(t, program))
	if err != nil {
		t.Fatal(err)
	}
	list, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	decoded, methods := 0, 0
	for _, s := range list {
		code, _, ok := m.code(symbol{vaddr: s.Value, size: s.Size})
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || !ok {
			continue
		}
		b, ok := decode(m.machine, code, s.Value)
		if !ok {
			continue
		}
		decoded++
		if slices.ContainsFunc(goNames, func(n name) bool { return strings.HasSuffix(s.Name, n.text) }) {
			methods++
		}
		var want []uint64
		for addr := s.Value; addr < s.Value+s.Size; addr++ {
			if returns[addr] {
				want = append(want, addr)
			}
		}
		if !slices.Equal(b.returns, want) {
			t.Errorf("%s: got %x, want %x", s.Name, b.returns, want)
		}
	}
	if decoded < 3000 || methods < 5 {
		t.Errorf("%d functions decoded, of them %d of connections", decoded, methods)
	}
}

func TestDecode(t *testing.T) {
	const at = 0x1000
	arm := func(words ...uint32) (b []byte) {
		for _, w := range words {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	for _, tt := range []struct {
		name    string
		machine elf.Machine
		code    []byte
		ok      bool
		returns []uint64
		targets []uint64
	}{
		{"ret in a constant", elf.EM_X86_64, []byte{0xb8, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3}, true, []uint64{at + 5}, nil},
		{"ret with a number", elf.EM_X86_64, []byte{0x90, 0xc2, 8, 0, 0xcc}, true, []uint64{at + 1}, nil},
		{"padding", elf.EM_X86_64, []byte{0xc3, 0xcc, 0xcc}, true, []uint64{at}, nil},
		{"call and jump away", elf.EM_X86_64, []byte{0xe8, 0xfb, 0, 0, 0, 0xe9, 0xf6, 0xff, 0xff, 0xff}, true, nil, []uint64{at + 0x100, at}[:1]},
		{"jump within", elf.EM_X86_64, []byte{0xeb, 0, 0xc3}, true, []uint64{at + 2}, nil},
		{"no instruction", elf.EM_X86_64, []byte{0xc3, 0x06, 0xc3}, false, nil, nil},
		{"cut off", elf.EM_X86_64, []byte{0xc3, 0xb8, 0xc3}, false, nil, nil},
		{"far return", elf.EM_X86_64, []byte{0xcb, 0xc3}, false, nil, nil},
		{"arm64", elf.EM_AARCH64, arm(0xd503201f, arm64Ret, 0x94000040, 0x17ffffff, arm64Ret), true, []uint64{at + 4, at + 16}, []uint64{at + 0x108}},
		{"arm64 constant", elf.EM_AARCH64, arm(0x58000041, arm64Ret, 0x12345678, 0), true, []uint64{at + 4}, nil},
		{"arm64 constant like a ret", elf.EM_AARCH64, arm(0x58000041, arm64Ret, arm64Ret, 0), false, nil, nil},
		{"arm64 half a word", elf.EM_AARCH64, arm(arm64Ret)[:3], false, nil, nil},
		{"vector instruction", elf.EM_X86_64, []byte{0xc5, 0xf8, 0x77, 0xc3}, false, nil, nil},
		{"lone prefix", elf.EM_X86_64, []byte{0xc3, 0x66}, false, nil, nil},
		{"another machine", elf.EM_RISCV, arm(arm64Ret), false, nil, nil},
	} {
		b, ok := decode(tt.machine, tt.code, at)
		if ok != tt.ok || ok && (!slices.Equal(b.returns, tt.returns) || !slices.Equal(b.targets, tt.targets)) {
			t.Errorf("%s: got %v, returns %x, targets %x; want %v, %x, %x", tt.name, ok, b.returns, b.targets, tt.ok, tt.returns, tt.targets)
		}
	}
}
