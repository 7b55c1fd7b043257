-- SPDX-License-Identifier: Apache-2.0
--
-- Slots: all at once as far as the bucket has them, or, if it has less than half
-- of what is wanted, one interval after the other from when it has one: who asks
-- for a batch does not want it in small pieces. Slots that came back and still
-- lie ahead go first.

-- A grant is kept until nobody can give it back, or ask for it again, any more:
-- its number, its first slot (0: all at once), units, what tat was then (0: slots
-- that had come back), and the interval.
local function keep_grant(slot, n, left)
	local until_ = max(slot + ceil(n * interval / 1000), now + term) + 2000000
	redis.call('HSET', lane, 'g:' .. id, table.concat({int(number), int(slot), int(n), int(left), int(interval)}, ' '))
	redis.call('ZADD', grants, int(until_), id)
	redis.call('PEXPIRE', grants, int(ceil((until_ - now + keep) / 1000)))
end

local before = redis.call('HGET', lane, 'g:' .. id)
if before then -- the answer got lost: the same once more
	local had, slot, n = string.match(before, '^(%d+) (%d+) (%d+)')
	granted, number, slot = tonumber(n), tonumber(had), tonumber(slot)
	if slot > 0 then after = max(1, slot - now) end
elseif stale == 1 then
	retry = 1000
elseif now < learn then
	retry = learn - now
elseif base == 0 then
	granted, number, after = units, step(), max(0, open - now)
else
	local from, there = max(tat, now), 0
	if from - now <= tol and now >= open then there = floor((tol - (from - now)) * 1000 / interval) + 1 end
	if 2 * there >= units then
		granted, number = min(units, there), step()
		tat = from + ceil(granted * interval / 1000)
		keep_grant(0, granted, tat)
	else
		after = max(from - tol - now, open - now, 1)
		redis.call('ZREMRANGEBYSCORE', free, '-inf', int(now))
		local run = redis.call('ZRANGEBYSCORE', free, int(max(now + 1, open)), int(now + after), 'LIMIT', 0, 1)
		-- No single batch lasts much longer than slots are booked ahead.
		local room = floor((2 * ahead - after) * 1000 / interval) + 2
		if run[1] then
			local start, n, of = string.match(run[1], '^(%d+) (%d+) (.*)$')
			start, n = tonumber(start), tonumber(n)
			granted, number, after = min(units, n), step(), start - now
			redis.call('ZREM', free, run[1])
			if n > granted then put_free(start + ceil(granted * interval / 1000), n - granted, of) end
			keep_grant(start, granted, 0)
		elseif (after - ahead) * 1000 > interval then
			retry, after = after - ahead, 0
		else
			granted, number = min(units, max(1, room)), step()
			tat = max(from, open + tol, now + after) + ceil(granted * interval / 1000)
			keep_grant(now + after, granted, tat)
		end
	end
end
