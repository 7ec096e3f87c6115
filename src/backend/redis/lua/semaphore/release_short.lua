-- The short way of release.lua: a whole hold ends, no lease has run out, and either nobody waits or one permit becomes free and
-- goes to the first in line, who wants one. The same answer. Stands by itself, as acquire_short.lua does.
--
-- holders, queue, waiters, fence, holds  as in line.lua and semaphore.lua
-- kind, id, kept                         as in release.lua
--
-- Changes nothing before it is certain that this is the way to go; everything else is for the long way.

local held = kept == '0' and redis.call('HGET', holds, id)
if held then
  local last = redis.call('HMGET', fence, 'limit', 'reign', 'lapse', 'used', 'ends', 'token', 'kept')
  local limit, lapse, used, ends = tonumber(last[1]), tonumber(last[3]), tonumber(last[4]), tonumber(last[5])
  local time = redis.call('TIME')
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  local now_ms = tonumber(string.sub(now, 1, -4))

  if limit and used and ends and ends > now_ms then
    used = used - string.match(held, '^%d+')
    local free, place = limit - used, nil
    if free == 1 then
      place = redis.call('ZRANGEBYSCORE', queue, '1', '1', 'LIMIT', '0', '1')[1]
    end
    -- Whoever waits for more stays where he is.
    local alone = not place and (free <= 1 or redis.call('EXISTS', queue) == 0)
    -- If it is no holder any more, somebody has changed the key, and all is to be counted anew.
    if alone and redis.call('ZREM', holders, id) == 1 then
      redis.call('HDEL', holds, id)
      redis.call('HSET', fence, 'used', used)
      return 1
    end
    local newest, token = tonumber(last[6]) or 0, now
    local gap = now - newest
    if gap < 16 then
      token = string.format('%.0f', newest + 16)
    end
    if place and gap > -1e6 and gap <= now % 1e8 then
      local next = string.sub(place, 18)
      local lease_ms, alive_until =
        string.match(redis.call('HGET', waiters, next) or '', '^%d+ (%d+) (%d+) 1$')
      local alive = lease_ms and alive_until - now_ms > 0
      if alive and (tonumber(last[7]) or 0) - now_ms >= lease_ms * 1.5 then
        local grant = 'grant ' .. next .. ' ' .. token .. ' ' .. kind .. '/' .. limit .. '/' .. last[2] .. ' ' .. holders
        if redis.call('PUBLISH', 'leasehold:' .. string.sub(next, 1, 36), grant) > 0 then
          redis.call('HDEL', waiters, next)
          redis.call('ZREM', queue, place)
          local function in_full(ms)
            return string.format('%d%03d', ms / 1000, ms % 1000)
          end
          -- Before the other goes, since with the last one goes the key and its expiry.
          redis.call('HSET', holds, next, '1 ' .. token)
          redis.call('ZADD', holders, in_full(now_ms + lease_ms), next)
          redis.call('HDEL', holds, id)
          ends, lapse = math.min(ends, now_ms + lease_ms), math.max(lapse, now_ms + lease_ms * 2)
          redis.call(
            'HSET', fence, 'token', token, 'used', used + 1, 'ends', in_full(ends), 'lapse', in_full(lapse)
          )
          local found = redis.call('ZREM', holders, id)
          if found == 0 then
            -- Somebody has deleted the holders: they have just been made anew.
            redis.call('PEXPIRE', holders, lease_ms * 2)
          end
          return found
        end
      end
    end
  end
end
