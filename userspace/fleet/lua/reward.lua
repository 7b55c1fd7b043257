-- SPDX-License-Identifier: Apache-2.0
--
-- Successes of requests that went after the reopening make a slowed lane faster,
-- up to its limit.

local of, by = arg(23), arg(25)
if of == epoch and now >= open and interval > base and by > 1 then
	slow = max(base, floor(interval / by))
	interval = slow
	if slow == base then slow = 0 end
	changed = slow == 0 or now - told >= 100000 -- not each step is news
	step()
end
