-- The short way of release.lua: a whole hold ends, no lease has run out, and either nobody waits or one permit becomes free and
-- goes to the first in line, who wants one. The same answer. Stands by itself, as acquire_short.lua does.
--
-- holders, queue, waiters, fence, holds  as in line.lua and semaphore.lua
-- kind, id, kept                         as in release.lua
--
-- Changes nothing before it is certain that this is the way to go; everything else is for the long way.

local held = redis.call('HMGET', holds, 'used', id)
if kept == '0' and held[1] and held[2] then
  local last = redis.call('HMGET', fence, 'limit', 'reign', 'lapse', 'token')
  local limit, lapse = tonumber(last[1]), tonumber(last[3])
  local used = held[1] - string.match(held[2], '^%d+')
  local time = redis.call('TIME')
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  local now_ms = tonumber(string.sub(now, 1, -4))
  local ends = tonumber(redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])

  if limit and ends and ends > now_ms then
    local place
    if limit - used == 1 then
      place = redis.call('ZRANGEBYSCORE', queue, 1, 1, 'LIMIT', 0, 1)[1]
    end
    if not place and (limit - used <= 1 or redis.call('EXISTS', queue) == 0) then
      local found = redis.call('ZREM', holders, id)
      redis.call('HDEL', holds, id)
      if used > 0 then
        redis.call('HSET', holds, 'used', used)
      else
        redis.call('DEL', holds)
      end
      return found
    end
    local gap = now - (tonumber(last[4]) or 0)
    if place and gap >= 16 then
      local next = string.sub(place, 18)
      local client = string.match(next, '^(%x+%-%x+%-%x+%-%x+%-%x+)%.%d+$')
      local lease_ms, alive_until = string.match(
        redis.call('HGET', waiters, next) or '',
        '^%d+ (%d+) (%d+) 1$'
      )
      if client and lease_ms and alive_until - now_ms > 0 then
        local function after(leases)
          local ms = now_ms + leases * lease_ms
          return string.format('%d%03d', ms / 1000, ms % 1000)
        end
        local grant = 'grant ' .. next .. ' ' .. now .. ' ' .. kind .. '/' .. limit .. '/' .. last[2] .. ' ' .. holders
        if redis.call('PUBLISH', 'leasehold:' .. client, grant) > 0 then
          local found = redis.call('ZREM', holders, id)
          redis.call('HDEL', holds, id)
          redis.call('HDEL', waiters, next)
          redis.call('ZREM', queue, place)
          redis.call('HSET', holds, next, '1 ' .. now, 'used', used + 1)
          redis.call('ZADD', holders, after(1), next)
          if redis.call('PTTL', holders) < lease_ms * 1.5 then
            redis.call('PEXPIRE', holders, lease_ms * 2)
            redis.call('PEXPIRE', holds, lease_ms * 2)
          end
          redis.call('HSET', fence, 'token', now, 'lapse', now_ms + 2 * lease_ms > lapse and after(2) or last[3])
          if gap > now % 1e8 then
            redis.call('PEXPIRE', fence, '86400000')
          end
          return found
        end
      end
    end
  end
end
