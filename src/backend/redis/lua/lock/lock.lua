-- A lock: code shared by its operations. Its key: see value.lua. Expires with the lease.

-- Makes a request the holder.
local function hold_lock(r, id, request)
  call('SET', r.key, write_value(id, request.token, request.owner), 'PX', request.ttl_ms)
  r.free = 0
  if request.owner then
    -- Other waiters for this owner may be admitted with it, and are sent `ask`.
    for other in string.gmatch(waiting_for(r, request.owner), '%S+') do
      tell(other, ASK .. ' ' .. other .. ' ' .. r.key)
    end
  end
end

local function next_lock_token(r, clock) return next_token(r.fence, clock) end

local function lock_at(key, queue, fence, clock)
  local stem = sub(queue, 1, -6)
  return {
    key = key, queue = queue, waiters = stem .. 'waiters', holds = stem .. 'holds', fence = fence, clock = clock,
    free = 0, limit = 1, by_size = false, message_kind = 'mutex', next_token = next_lock_token, admit = hold_lock,
  }
end
