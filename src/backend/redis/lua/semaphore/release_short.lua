-- The short way of release.lua: a whole hold ends, no lease has run out, and either nobody waits or one permit becomes free and
-- goes to the first in line, who wants one. The same answer. Stands by itself, as acquire_short.lua does.
--
-- holders, queue, waiters, fence, holds  as in line.lua and semaphore.lua
-- kind, id, kept                         as in release.lua
--
-- Changes nothing before it is certain that this is the way to go; everything else is for the long way.

local held = kept == '0' and redis.call('HGET', holds, id)
if held then
  local last = redis.call('HMGET', fence, 'limit', 'reign', 'lapse', 'used', 'ends', 'token')
  local limit, lapse, used, ends = tonumber(last[1]), tonumber(last[3]), tonumber(last[4]), tonumber(last[5])
  local time = redis.call('TIME')
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  local now_ms = tonumber(string.sub(now, 1, -4))

  if limit and used and ends and ends > now_ms then
    used = used - string.match(held, '^%d+')
    local line = limit > used and redis.call('EXISTS', queue) == 1
    if not line then
      local found = redis.call('ZREM', holders, id)
      redis.call('HDEL', holds, id)
      redis.call('HSET', fence, 'used', used)
      return found
    end
    local gap = now - (tonumber(last[6]) or 0)
    local place = limit - used == 1 and redis.call('ZRANGEBYSCORE', queue, 1, 1, 'LIMIT', 0, 1)[1]
    if place and gap >= 16 and gap <= now % 1e8 then
      local next = string.sub(place, 18)
      local client = string.match(next, '^(%x+%-%x+%-%x+%-%x+%-%x+)%.%d+$')
      local lease_ms, alive_until =
        string.match(redis.call('HGET', waiters, next) or '', '^%d+ (%d+) (%d+) 1$')
      local alive = client and lease_ms and alive_until - now_ms > 0
      if alive and lapse - now_ms >= lease_ms * 1.5 then
        local grant = 'grant ' .. next .. ' ' .. now .. ' ' .. kind .. '/' .. limit .. '/' .. last[2] .. ' ' .. holders
        if redis.call('PUBLISH', 'leasehold:' .. client, grant) > 0 then
          redis.call('HDEL', waiters, next)
          redis.call('ZREM', queue, place)
          local ms = now_ms + lease_ms
          local end_of_lease = string.format('%d%03d', ms / 1000, ms % 1000)
          -- Before the other goes, since with the last one goes the key and its expiry.
          redis.call('HSET', holds, next, '1 ' .. now)
          redis.call('ZADD', holders, end_of_lease, next)
          redis.call('HDEL', holds, id)
          redis.call('HSET', fence, 'token', now, 'used', used + 1, 'ends', ms < ends and end_of_lease or last[5])
          return redis.call('ZREM', holders, id)
        end
      end
    end
  end
end
