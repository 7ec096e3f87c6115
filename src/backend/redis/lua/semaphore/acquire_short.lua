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
local last = redis.call('HMGET', fence, 'limit', 'reign', 'lapse', 'used', 'ends', 'token', 'ticket', 'kept')
local limit, lapse, used = tonumber(last[1]), tonumber(last[3]), tonumber(last[4])
local ends, kept = tonumber(last[5]), tonumber(last[8])
if used == 0 then
  ends, kept = now_ms + lease_ms, now_ms + lease_ms * 2
end

if limit and last[2] == known and now_ms < lapse and ends and ends > now_ms
  and kept and kept - now_ms >= lease_ms * 1.5
then
  local function in_full(ms)
    return string.format('%d%03d', ms / 1000, ms % 1000)
  end
  local end_of_lease = in_full(now_ms + lease_ms)
  if limit - used - permits >= 0 then
    -- As with the token of a lock: above all tokens of the last grant (TOKENS_PER_GRANT in line.lua). The first grant within 100
    -- seconds goes the long way, which keeps the fence for another day.
    local newest, token = tonumber(last[6]) or 0, now
    local gap = now - newest
    if gap < 16 then
      token = string.format('%.0f', newest + 16)
    end
    -- Nobody waits, and there are holders if permits are in use, and only then; the key counts twice.
    local fits = gap > -1e6 and gap <= now % 1e8
      and redis.call('EXISTS', holders, holders, queue) == (used > 0 and 2 or 0)
    if fits and redis.call('HSETNX', holds, id, permits .. ' ' .. token) == 1 then
      redis.call('ZADD', holders, end_of_lease, id)
      if used == 0 then
        redis.call('PEXPIRE', holders, lease_ms * 2)
        redis.call('PEXPIRE', holds, lease_ms * 2)
      end
      ends, lapse = math.min(ends, now_ms + lease_ms), math.max(lapse, now_ms + lease_ms * 2)
      redis.call(
        'HSET', fence, 'token', token, 'used', used + permits,
        'ends', in_full(ends), 'lapse', in_full(lapse), 'kept', in_full(kept)
      )
      return { 'granted', limit, known, token }
    end
  elseif waits == '1' and limit - permits >= 0
    -- One in fifty goes the long way, which tidies up.
    and now % 50 > 0
    and redis.call('HEXISTS', holds, id) == 0
  then
    local newest, ticket = tonumber(last[7]) or 0, now
    if now - newest <= 0 then
      ticket = string.format('%016.0f', newest + 1)
    end
    local before = redis.call('ZCARD', queue)
    local record = ticket .. ' ' .. lease_ms .. ' ' .. end_of_lease .. ' ' .. permits
    -- Whoever makes the line a long one (INDEXED in line.lua) goes the long way, which gives it an index.
    if before ~= 32 and redis.call('HSETNX', waiters, id, record) == 1 then
      redis.call('HSET', fence, 'ticket', ticket)
      redis.call('ZADD', queue, kind == 'counting' and permits or '1', ticket .. ' ' .. id)
      if redis.call('PTTL', queue) < lease_ms * 1.5 then
        redis.call('PEXPIRE', queue, lease_ms * 2)
        redis.call('PEXPIRE', waiters, lease_ms * 2)
      end
      return { 'queued', limit, known, ends - now_ms, before }
    end
  end
end
