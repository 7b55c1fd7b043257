-- SPDX-License-Identifier: Apache-2.0
--
-- Ends a grant and takes back of it what can be given to others: as if it had
-- never been granted, if nobody was granted anything since, or the slots that
-- still lie ahead, which nobody can have used.

local of = ARGV[26]
local value = redis.call('HGET', lane, 'g:' .. of)
if value then
	redis.call('HDEL', lane, 'g:' .. of)
	redis.call('ZREM', grants, of)
	local had, slot, n, left, every = string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
	had, slot, n, left, every = tonumber(had), tonumber(slot), tonumber(n), tonumber(left), tonumber(every)
	local back = min(units, n)
	if back < n and slot > 0 or left ~= tat then
		-- Which units were used is not known, but none before its slot.
		local past = 0
		if slot == 0 then past = n
		elseif now >= slot then past = min(n, floor((now - slot) * 1000 / every) + 1) end
		back = min(back, n - past)
	end
	if had > era and back > 0 then
		local start = slot + ceil((n - back) * every / 1000)
		if left == tat then
			granted = back
			tat = tat - floor(back * every / 1000)
		elseif start > now and start >= open then
			granted = back
			put_free(start, back, of)
		end
		if granted > 0 then step() end
	end
end
