// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
)

// writeExitsCSV writes a row for each pair of exit and destination. Times are
// UTC; a share or a cost that is not known is an empty cell.
func writeExitsCSV(w io.Writer, exits admin.Exits) error {
	out := csv.NewWriter(w)
	head := []string{
		"from", "to", "exit", "destination", "requests", "answers_429", "refused",
		"connections_redirected", "connections_untouched", "connections_refused",
	}
	for _, o := range policy.Outcomes() {
		head = append(head, o.String()+"_exchanges", o.String()+"_sent_bytes", o.String()+"_received_bytes")
	}
	head = append(head, "bytes", "waste_share", "price_per_gb", "estimated_cost")
	rows := [][]string{head}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	for _, p := range exits.Pairs {
		row := []string{
			exits.From.UTC().Format(time.RFC3339), exits.To.UTC().Format(time.RFC3339),
			inert(p.Exit), inert(p.Destination), number(p.Requests), number(p.TooMany), number(p.Refused),
			number(p.Connections.Redirected), number(p.Connections.Untouched), number(p.Connections.Refused),
		}
		for _, o := range policy.Outcomes() {
			t := p.Outcomes[o.String()]
			row = append(row, number(t.Exchanges), number(t.Sent), number(t.Received))
		}
		price := ""
		if p.Price > 0 {
			price = strconv.FormatFloat(p.Price, 'f', -1, 64)
		}
		rows = append(rows, append(row, number(p.Bytes), optional(p.Waste, 4), price, optional(p.Cost, 6)))
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("print CSV: %w", err)
	}
	return nil
}

func optional(x *float64, digits int) string {
	if x == nil {
		return ""
	}
	return strconv.FormatFloat(*x, 'f', digits, 64)
}

// inert keeps a spreadsheet from taking a text for a formula. Sessions of exits
// are chosen by clients. A leading quote is what spreadsheets themselves
// understand as: text.
func inert(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n'＝＋－＠", []rune(s)[0]) {
		return "'" + s
	}
	return s
}
