// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// channel is where scripts publish. It has the version of what they say.
const channel = prefix + "changes"

// pulse is how often a silent subscription is tried.
const pulse = time.Second

// Notice is what one host did to a lane, as the store tells all.
type Notice struct {
	// Lane is the lane, or "": the subscription begins, for the first time or
	// after it broke. What was published before is lost: who needs it asks.
	Lane string
	Host string // who did it
	// The lane's state: as in an Answer.
	Epoch     uint64
	OpenAfter time.Duration // from the moment of publication
	Interval  time.Duration
}

var errNotice = errors.New("no notice")

// parseNotice reads what a script publishes: "1 EPOCH OPEN INTERVAL HOST LANE".
func parseNotice(text string) (Notice, error) {
	words := strings.Split(text, " ")
	if len(words) != 6 || words[0] != "1" || len(text) > 8*maxText {
		return Notice{}, errNotice
	}
	var numbers [3]int64
	for i := range numbers {
		n, err := strconv.ParseUint(words[i+1], 10, 60)
		if err != nil {
			return Notice{}, errNotice
		}
		numbers[i] = int64(n)
	}
	host, err1 := url.PathUnescape(words[4])
	lane, err2 := url.PathUnescape(words[5])
	if err1 != nil || err2 != nil || host == "" || lane == "" || escape(host) != words[4] || escape(lane) != words[5] {
		return Notice{}, errNotice
	}
	return Notice{
		Lane: lane, Host: host, Epoch: uint64(numbers[0]), OpenAfter: span(numbers[1]), Interval: time.Duration(numbers[2]),
	}, nil
}

// Subscribe calls f with all notices, those of this host too, one after the
// other, until ctx ends, and returns the reason. It goes on by itself when the
// connection breaks, or another server takes over. f must not block: notices that
// it keeps waiting are lost after a while.
func (s *Store) Subscribe(ctx context.Context, f func(Notice)) error {
	for {
		if moved, err := s.subscribe(ctx, f); !moved {
			return err
		}
	}
}

// subscribe is Subscribe until calls go to another server.
func (s *Store) subscribe(ctx context.Context, f func(Notice)) (moved bool, err error) {
	elsewhere := s.server.next()
	subscription := s.client.Subscribe(ctx, channel)
	defer func() { _ = subscription.Close() }() // what could it tell that matters now
	messages := subscription.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(pulse), redis.WithChannelSendTimeout(pulse))
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-elsewhere:
			return true, nil
		case message, ok := <-messages:
			if !ok {
				if err := ctx.Err(); err != nil {
					return false, err
				}
				return false, &callError{class: ErrDown, detail: "the store was closed"}
			}
			switch m := message.(type) {
			case *redis.Subscription:
				f(Notice{})
			case *redis.Message:
				// Whoever may write to the channel may write nonsense.
				if n, err := parseNotice(m.Payload); err == nil {
					f(n)
				}
			}
		}
	}
}
