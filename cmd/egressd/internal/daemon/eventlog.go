// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/events"
)

// openEventLog begins to write events to where the policy says.
func (d *Daemon) openEventLog(where string) error {
	var sink events.Sink
	switch where {
	case "", policy.EventsOff:
		return nil
	case policy.EventsAuto:
		if !events.ToJournal(os.Stderr, d.getenv) {
			return nil
		}
		sink = events.NewJournal(events.JournalSocket, d.journalFields)
	case policy.EventsJournald:
		sink = events.NewJournal(events.JournalSocket, d.journalFields)
	case policy.EventsStderr:
		if d.cfg.Stderr == nil {
			return nil
		}
		sink = events.NewStream(d.cfg.Stderr, d.encodeEvent)
	default:
		var err error
		if sink, err = events.NewFile(where, d.encodeEvent); err != nil {
			if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
				err = pathErr.Err
			}
			return fmt.Errorf("events.log: open %s: %w", where, err)
		}
	}
	d.eventLog = events.NewWriter(d.events, sink, d.log)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.eventLog.Run()
	}()
	d.closeLater(func() error {
		select {
		case <-ended:
		case <-time.After(lastEvents):
			d.log.Warn("the event log takes too long to end", "lost", d.eventLog.Lost())
		}
		return nil
	})
	return nil
}

// lastEvents is how long the end of the daemon waits for events to be written.
const lastEvents = 2 * time.Second

// getenv reads the environment, unless the daemon is one of a test.
func (d *Daemon) getenv(name string) string {
	if d.cfg.Getenv != nil {
		return d.cfg.Getenv(name)
	}
	return ""
}

// lostEvents is how many events were not written.
func (d *Daemon) lostEvents() uint64 {
	if d.eventLog == nil {
		return 0
	}
	return d.eventLog.Lost()
}

// encodeEvent is an event as the commands print it, too.
func (d *Daemon) encodeEvent(ev policy.Event) ([]byte, error) { return json.Marshal(d.event(ev)) }

// journalFields are an event as a message of the journal.
func (d *Daemon) journalFields(ev policy.Event) []events.Field {
	e := d.event(ev)
	fields := []events.Field{
		{Name: "MESSAGE", Value: messageOf(ev)},
		{Name: "PRIORITY", Value: strconv.Itoa(priorityOf(ev.Kind))},
		{Name: "SYSLOG_IDENTIFIER", Value: "egressd"},
		{Name: "EGRESSD_KIND", Value: e.Kind},
		{Name: "EGRESSD_MONO_NS", Value: strconv.FormatUint(e.Mono, 10)},
	}
	for _, f := range []struct {
		name, value string
		given       bool
	}{
		{"EGRESSD_LANE", e.Lane, e.Lane != ""},
		{"EGRESSD_WAIT_S", number(e.Wait), e.Wait != 0},
		{"EGRESSD_DETAIL", e.Detail, e.Detail != ""},
		{"EGRESSD_EXTENDED", "1", e.Extended},
		{"EGRESSD_RATE_PER_SECOND", number(e.Rate), e.Rate != 0},
		{"EGRESSD_COUNT", strconv.FormatUint(e.Count, 10), e.Count != 0},
		{"EGRESSD_SUPPRESSED", strconv.FormatUint(e.Suppressed, 10), e.Suppressed != 0},
	} {
		if f.given {
			fields = append(fields, events.Field{Name: f.name, Value: f.value})
		}
	}
	return fields
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// messageOf is an event in one line for people.
func messageOf(ev policy.Event) string {
	parts := []string{string(ev.Kind)}
	if ev.Lane != "" {
		parts = append(parts, ev.Lane)
	}
	if ev.Wait != 0 {
		parts = append(parts, ev.Wait.Round(time.Millisecond).String())
	}
	if ev.Rate != 0 {
		parts = append(parts, number(ev.Rate)+"/s")
	}
	if ev.Count != 0 && ev.Kind != events.EventLost {
		parts = append(parts, strconv.FormatUint(ev.Count, 10)+" connections")
	}
	if ev.Detail != "" {
		parts = append(parts, strings.ReplaceAll(ev.Detail, "\n", "; "))
	}
	if ev.Suppressed != 0 {
		parts = append(parts, fmt.Sprintf("(and %d before)", ev.Suppressed))
	}
	return strings.Join(parts, " ")
}

// priorityOf is how urgent events of a kind are, as syslog counts.
func priorityOf(kind policy.EventKind) int {
	const err, warning, notice, info = 3, 4, 5, 6
	switch kind {
	case policy.EventReloadFailed:
		return err
	case policy.EventStalled, policy.EventUntouched, policy.EventExitMismatch, policy.EventUnreachable, policy.EventCanary, events.EventLost:
		return warning
	case policy.EventCooldown, policy.EventPenalty, policy.EventRefused, policy.EventExitSwitch:
		return notice
	}
	return info
}
