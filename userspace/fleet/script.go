// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"

	shared "github.com/egressd/egressd/policy/fleet"
)

// The parts of scripts: what all begin with, what each kind of call does, what
// all end with.
var (
	//go:embed lua/lane.lua
	laneLua string
	//go:embed lua/grant.lua
	grantLua string
	//go:embed lua/give.lua
	giveLua string
	//go:embed lua/close.lua
	closeLua string
	//go:embed lua/reward.lua
	rewardLua string
	//go:embed lua/watch.lua
	watchLua string
	//go:embed lua/answer.lua
	answerLua string
)

// script is a text that a server runs atomically, and the name under which it
// remembers it.
type script struct{ text, sha string }

func newScript(parts ...string) script {
	text := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(text)) // the protocol wants this one
	return script{text, hex.EncodeToString(sum[:])}
}

// newScripts makes the script of each kind. clock replaces the reading of the
// server's clock in tests; it is "" elsewhere.
func newScripts(clock string) map[shared.Kind]script {
	lane := laneLua
	if clock != "" {
		lane = strings.Replace(lane, "redis.call('TIME')", clock, 1)
	}
	all := map[shared.Kind]script{}
	for kind, part := range map[shared.Kind]string{
		shared.Book: grantLua, shared.Lease: grantLua, shared.Give: giveLua,
		shared.Close: closeLua, shared.Reward: rewardLua, shared.Watch: watchLua,
	} {
		all[kind] = newScript(lane, part, answerLua)
	}
	return all
}

// run runs the script by its name, and sends its text where the server does not
// know it, as after a restart: it has not run then. trips counts the round
// trips.
func (s script) run(ctx context.Context, client redis.UniversalClient, keys []string, args []any, trips *int) ([]int64, error) {
	*trips++
	answer, err := client.EvalSha(ctx, s.sha, keys, args...).Int64Slice()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		*trips++
		answer, err = client.Eval(ctx, s.text, keys, args...).Int64Slice()
	}
	return answer, err
}
