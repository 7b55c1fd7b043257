-- SPDX-License-Identifier: Apache-2.0
--
-- A cooldown: the later end holds, and the first refusal of an epoch slows the
-- lane, as ledger.Cell.Penalize does. The bucket is empty at the reopening.

local span, of, factor = arg(22), arg(23), arg(24)
local longer, begins = now + span > open, false
open = max(open, now + span)
if of > epoch then
	-- The store forgot, or has not heard of it yet: after the refusal the next
	-- epoch begins, and who tells the same finds it begun.
	epoch, begins = of + 1, true
	if base > 0 and factor > 0 and factor < 1 then slow = max(interval, ceil(base / factor)) end
elseif of == epoch then
	epoch, begins = epoch + 1, true
	if base > 0 and factor > 0 and factor < 1 then
		slow = max(interval, min(ceil(interval / factor), max(2000000000, ceil(base / factor))))
	end
end
interval = max(base, slow)
if begins then redis.call('DEL', free)
elseif longer then redis.call('ZREMRANGEBYSCORE', free, '-inf', '(' .. int(open)) end
if begins or longer then
	tat, changed = max(tat, max(open, now) + tol), true
	step()
	era = seq
end
