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
local last = redis.call('HMGET', fence, 'limit', 'reign', 'lapse', 'token', 'ticket')
local limit, lapse = tonumber(last[1]), tonumber(last[3])
local held = redis.call('HMGET', holds, 'used', id)
local used, ends = tonumber(held[1]), tonumber(redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])

local in_force = limit and last[2] == known and now_ms < lapse
if in_force and not held[2] and (used and 1) == (ends and 1) and (ends or now_ms + 1) > now_ms then
  used = used or 0
  -- Ends of the lease and of the one after it.
  local function after(leases)
    local ms = now_ms + leases * lease_ms
    return string.format('%d%03d', ms / 1000, ms % 1000)
  end
  if limit - used - permits >= 0 then
    local gap = now - (tonumber(last[4]) or 0)
    if gap >= 16 and redis.call('EXISTS', queue) == 0 then
      redis.call('HSET', holds, id, permits .. ' ' .. now, 'used', used + permits)
      redis.call('ZADD', holders, after(1), id)
      if redis.call('PTTL', holders) < lease_ms * 1.5 then
        redis.call('PEXPIRE', holders, lease_ms * 2)
        redis.call('PEXPIRE', holds, lease_ms * 2)
      end
      redis.call('HSET', fence, 'token', now, 'lapse', now_ms + 2 * lease_ms > lapse and after(2) or last[3])
      if gap > now % 1e8 then
        redis.call('PEXPIRE', fence, '86400000')
      end
      return { 'granted', limit, known, now }
    end
  elseif waits == '1' and limit - permits >= 0 and now - (tonumber(last[5]) or 0) > 0
    -- One in ten goes the long way, which tidies up.
    and now % 10 > 0
    and redis.call('HLEN', holds) == redis.call('ZCARD', holders) + 1
    and redis.call('HEXISTS', waiters, id) == 0
  then
    local before = redis.call('ZCARD', queue)
    redis.call('HSET', fence, 'ticket', now)
    redis.call('HSET', waiters, id, now .. ' ' .. lease_ms .. ' ' .. after(1) .. ' ' .. permits)
    redis.call('ZADD', queue, kind == 'counting' and permits or 1, now .. ' ' .. id)
    if redis.call('PTTL', queue) < lease_ms * 1.5 then
      redis.call('PEXPIRE', queue, lease_ms * 2)
      redis.call('PEXPIRE', waiters, lease_ms * 2)
    end
    return { 'queued', limit, known, ends - now_ms, before }
  end
end
