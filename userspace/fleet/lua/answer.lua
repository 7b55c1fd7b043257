-- SPDX-License-Identifier: Apache-2.0
--
-- What every script ends with: writes the lane and answers.

if changed then publish() end
redis.call('HSET', lane, 'ts', int(now), 'offset', int(offset), 'tat', int(tat), 'open', int(open),
	'epoch', int(epoch), 'base', int(base), 'slow', int(slow), 'born', int(born), 'seq', int(seq),
	'era', int(era), 'learn', int(learn), 'tol', int(tol), 'told', int(told))
redis.call('PEXPIRE', lane, int(ceil((max(0, tat - now, open - now) + keep) / 1000)))
local young = 0
if now < learn or now < born + youth then young = 1 end
return {granted, after, number, epoch, max(0, open - now), interval, alive, retry, young,
	born, seq, clock, max(0, tat - now), slow, stale, raised}
