-- A lock: what its operations share.
--
-- KEYS[1]  lock     see value.lua. Expires with the lease.
-- KEYS[2]  queue    see queue.lua
-- KEYS[3]  waiters  see queue.lua
-- KEYS[4]  fence    see token.lua
-- KEYS[5]  holds    see holds.lua; only of a reentrant lock

-- Makes a request the holder.
local function hold_lock(r, id, request)
  redis.call('SET', r.key, write_value(id, request.token_text, request.owner), 'PX', request.lease_ms)
  r.free = 0
  if request.owner then
    -- Whoever else waits for this owner may come in with it, and is told to ask.
    for other in string.gmatch(waiting_for(r, request.owner), '%S+') do
      tell(other, ASK .. ' ' .. other, r.key)
    end
  end
end

local function lock_at(keys, fence, clock)
  return {
    key = keys[1], queue = keys[2], waiters = keys[3], holds = keys[5], fence = fence, clock = clock,
    free = 0, limit = 1, by_size = false, terms = 'mutex', admit = hold_lock,
  }
end

