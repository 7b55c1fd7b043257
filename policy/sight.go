// SPDX-License-Identifier: Apache-2.0

package policy

import "sync/atomic"

// Sight says how the inside of a TLS connection is seen. The set is closed.
type Sight uint8

// Sights.
const (
	SightNone      Sight = iota // it is no TLS connection
	SightBlind                  // it is not seen: paced by flights
	SightKeys                   // read with keys that its process logged
	SightUprobe                 // shown by uprobes in its process
	SightTerminate              // TLS ends here
	numSights
)

var sightNames = [numSights]string{"none", "blind", "keys", "uprobe", "terminate"}

// String is the sight as metrics write it.
func (s Sight) String() string { return sightNames[min(s, numSights-1)] }

// Doubt is why a TLS connection that was to be looked into was not, or not any
// more. The set is closed.
type Doubt uint8

// Doubts.
const (
	DoubtNoKeys      Doubt = iota // no keys came in time
	DoubtUnsupported              // version, cipher suite or early data that cannot be read
	DoubtUndecided                // a record was not authentic under the keys
	DoubtHTTP                     // what it carries is no HTTP, or its framing is broken
	DoubtQueueFull                // its copies came faster than they were read
	DoubtTooLong                  // what must be held does not fit
	DoubtShape                    // TLS would not look the same if it ended here
	DoubtUntrusted                // the client does not trust the host's authority
	DoubtUpstream                 // the origin did not accept the handshake made for the client
	DoubtNoAuthority              // there is no certificate authority for the name
	numDoubts
)

var doubtNames = [numDoubts]string{
	"no_keys", "unsupported", "undecryptable", "http", "queue_full", "too_long",
	"shape", "untrusted", "upstream", "no_authority",
}

// String is the doubt as metrics write it.
func (d Doubt) String() string { return doubtNames[min(d, numDoubts-1)] }

// Insight counts how TLS connections are seen. Safe for concurrent use.
type Insight struct {
	open    [numSights]atomic.Int64
	answers [numSights]atomic.Uint64
	doubts  [numDoubts]atomic.Uint64
	unknown atomic.Uint64
	shared  atomic.Uint64
}

// Change notes that an open connection is seen in another way. SightNone
// stands for one that is not there yet, or not any more.
func (i *Insight) Change(from, to Sight) {
	if from == to {
		return
	}
	if from != SightNone {
		i.open[from].Add(-1)
	}
	if to != SightNone {
		i.open[to].Add(1)
	}
}

// Answer counts an answer that was seen.
func (i *Insight) Answer(s Sight) { i.answers[min(s, numSights-1)].Add(1) }

// Doubt counts a connection that cannot be looked into, or not any more.
func (i *Insight) Doubt(d Doubt) { i.doubts[min(d, numDoubts-1)].Add(1) }

// Unknown counts an answer that was seen and belongs to no connection that is
// known.
func (i *Insight) Unknown() { i.unknown.Add(1) }

// Shared counts a request that left together with another, as one record held
// both.
func (i *Insight) Shared() { i.shared.Add(1) }

// InsightCounts is what an Insight has counted.
type InsightCounts struct {
	Open    map[Sight]int64  // connections that are open now
	Answers map[Sight]uint64 // that were seen
	Doubts  map[Doubt]uint64 // connections
	Unknown uint64           // answers of no known connection
	Shared  uint64           // requests that left together with another
}

// Counts reads the counts. Every sight of a TLS connection and every doubt has
// an entry.
func (i *Insight) Counts() InsightCounts {
	c := InsightCounts{Open: map[Sight]int64{}, Answers: map[Sight]uint64{}, Doubts: map[Doubt]uint64{}}
	for s := SightBlind; s < numSights; s++ {
		c.Open[s] = i.open[s].Load()
		if s != SightBlind {
			c.Answers[s] = i.answers[s].Load()
		}
	}
	for d := range numDoubts {
		c.Doubts[d] = i.doubts[d].Load()
	}
	c.Unknown, c.Shared = i.unknown.Load(), i.shared.Load()
	return c
}
