-- The short way of acquire.lua: a new request for a semaphore whose limit the client knows, while no lease has run out. It gets
-- its permits if nobody waits, and a place in line if there are too few. The same answers. Stands by itself, since what other
-- scripts share costs time on every call.
--
-- holders, queue, waiters, fence, holds         as in line.lua and semaphore.lua
-- kind, id, lease_ms, waits, permits, _, known  as in acquire.lua
--
-- Changes nothing before it is certain that this is the way to go; everything else is for the long way.

local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local now_ms = tonumber(string.sub(now, 1, -4))
local last = redis.call('HMGET', fence, 'limit', 'reign', 'lapse', 'used', 'ends', 'token', 'ticket')
local limit, lapse, used = tonumber(last[1]), tonumber(last[3]), tonumber(last[4])
-- A lease that lasts for longer than the limit stays in force changes that.
local lasts = lapse and lapse - now_ms >= lease_ms * 1.5
local ends = used == 0 and lapse or tonumber(last[5]) or 0

if limit and last[2] == known and lasts and ends > now_ms and redis.call('HEXISTS', holds, id) == 0 then
  local ms = now_ms + lease_ms
  local end_of_lease = string.format('%d%03d', ms / 1000, ms % 1000)
  if limit - used - permits >= 0 then
    local gap = now - (tonumber(last[6]) or 0)
    -- As with the token of a lock.
    if gap >= 16 and gap <= now % 1e8 and redis.call('EXISTS', queue) == 0 then
      redis.call('HSET', holds, id, permits .. ' ' .. now)
      redis.call('ZADD', holders, end_of_lease, id)
      if used == 0 then
        redis.call('PEXPIRE', holders, lapse - now_ms)
        redis.call('PEXPIRE', holds, lapse - now_ms)
      end
      redis.call('HSET', fence, 'token', now, 'used', used + permits, 'ends', ms < ends and end_of_lease or last[5])
      return { 'granted', limit, known, now }
    end
  elseif waits == '1' and limit - permits >= 0 and now - (tonumber(last[7]) or 0) > 0
    -- One in ten goes the long way, which tidies up.
    and now % 10 > 0
    and redis.call('HEXISTS', waiters, id) == 0
  then
    local before = redis.call('ZCARD', queue)
    redis.call('HSET', fence, 'ticket', now)
    redis.call('HSET', waiters, id, now .. ' ' .. lease_ms .. ' ' .. end_of_lease .. ' ' .. permits)
    redis.call('ZADD', queue, kind == 'counting' and permits or 1, now .. ' ' .. id)
    if redis.call('PTTL', queue) < lease_ms * 1.5 then
      redis.call('PEXPIRE', queue, lease_ms * 2)
      redis.call('PEXPIRE', waiters, lease_ms * 2)
    end
    return { 'queued', limit, known, ends - now_ms, before }
  end
end
