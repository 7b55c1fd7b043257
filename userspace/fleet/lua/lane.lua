-- SPDX-License-Identifier: Apache-2.0
--
-- What every script begins with: reads the lane, at one reading of the server's
-- clock. The file of the call's kind follows, then answer.lua.
--
-- Instants and spans are whole microseconds, intervals whole nanoseconds: all
-- below 2^53, so that the doubles of Lua hold them exactly.

local lane, hosts, grants, free = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, host, name = ARGV[1], ARGV[2], ARGV[3]
local function arg(i) return tonumber(ARGV[i]) end
local base, burst, units, term = arg(4), arg(5), arg(6), arg(7)
local learn_span, youth, beat, keep, ahead, patience = arg(8), arg(9), arg(10), arg(11), arg(12), arg(13)
-- What the host last saw of the lane: its birth (0: nothing), the number of its
-- last change, what the server's clock should say by now, and how far tat and
-- the end of the cooldown should lie ahead.
local seen_born, seen_seq, seen_clock = arg(14), arg(15), arg(16)
local seen_ahead, seen_open, seen_epoch, seen_slow = arg(17), arg(18), arg(19), arg(20)
local suspect = ARGV[21] == '1' -- the host had trouble with the store since

local max, min, floor, ceil = math.max, math.min, math.floor, math.ceil
-- Lua itself would write 1.7e+15.
local function int(x) return string.format('%.0f', x) end

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]

local s = redis.call('HMGET', lane, 'ts', 'offset', 'tat', 'open', 'epoch', 'base', 'slow', 'born', 'seq', 'era', 'learn', 'tol',
	'told')
for i = 1, 13 do s[i] = tonumber(s[i] or 0) or 0 end
local ts, offset, tat, open, epoch, old_base, slow, born = s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]
-- What was granted up to the number era cannot come back any more.
local seq, era, learn, old_tol, told = s[9], s[10], s[11], s[12], s[13]
local known = born > 0

-- The lane's time never goes back. Behind a small step of the server's clock it
-- stands still; behind a large one, as after a failover to a server whose clock
-- is wrong, it goes on from where it was.
local now = clock + offset
if now < ts then
	if ts - now >= 1000000 then offset = offset + ts - now end
	now = ts
end

-- Another limit, as after a reload: what lies ahead is rescaled, and a slow-down
-- stays the same factor.
local tol = min(floor((burst - 1) * base / 1000), 1e14)
if known and old_base > 0 and base > 0 and old_base ~= base then
	local from = max(now, open)
	if tat > from then tat = from + ceil((tat - from) * base / old_base) end
	old_tol = ceil(old_tol * base / old_base)
	if slow > 0 then slow = ceil(slow * base / old_base) end
	era = seq
	redis.call('DEL', free)
end
-- Another burst: what is in the bucket stays, as far as there is room.
if known and base > 0 and old_tol ~= tol then
	tat, era = max(max(tat, now) + tol - old_tol, now), seq
end

local lost, raised = false, 0
if not known then
	-- Nothing is known: the bucket is empty but for one unit.
	born, tat, lost = now, now + tol, seen_born > 0
elseif seen_born == born and (seen_seq > seq or seen_epoch > epoch) then
	-- A replica took over that had not heard of everything.
	born, lost = max(now, born + 1), true
end
if lost then
	learn = now + learn_span
	tat, era, raised = max(tat, learn + tol), seq, 1
end
if seen_born > 0 and (suspect or seen_born ~= born) then
	if seen_born ~= born then learn = max(learn, born + learn_span) end
	if now + seen_ahead > tat then tat, era, raised = now + seen_ahead, seq, 1 end
	if seen_open > 0 and now + seen_open > open then open, raised = now + seen_open, 1 end
	if seen_epoch > epoch then epoch, slow = seen_epoch, max(slow, seen_slow) end
end
local interval = max(base, slow)

local over = redis.call('ZRANGEBYSCORE', grants, '-inf', '(' .. int(now), 'LIMIT', 0, 16)
if #over > 0 then
	redis.call('ZREM', grants, unpack(over))
	for i = 1, #over do over[i] = 'g:' .. over[i] end
	redis.call('HDEL', lane, unpack(over))
end

redis.call('ZADD', hosts, int(now + beat), host)
redis.call('ZREMRANGEBYSCORE', hosts, '-inf', '(' .. int(now))
redis.call('PEXPIRE', hosts, int(ceil(2 * beat / 1000)))
local alive = redis.call('ZCARD', hosts)

-- A number that grows with each change, and, as long as clocks are about right,
-- from one store to the next.
local function step()
	seq = max(seq + 1, now)
	return seq
end

-- A server that does not let us publish must not cost us the rest.
local function publish()
	told = now
	redis.pcall('PUBLISH', 'egressd:1:changes',
		table.concat({'1', int(epoch), int(max(0, open - now)), int(interval), host, name}, ' '))
end

-- Slots that came back are runs, written START UNITS GRANT, START being the
-- score: nobody else has slots between those of a run.
local function put_free(start, n, of)
	redis.call('ZADD', free, int(start), int(start) .. ' ' .. int(n) .. ' ' .. of)
	redis.call('PEXPIRE', free, int(ceil((start - now) / 1000) + 60000))
end

local granted, after, number, retry, stale, changed = 0, 0, 0, 0, 0, false
-- A call that lay about, as before a server that was stopped, is nobody's any more.
if seen_born == born and not suspect and seen_clock > 0 and clock > seen_clock + patience then stale = 1 end
