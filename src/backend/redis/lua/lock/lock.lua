-- A lock: what acquire.lua, release.lua and force.lua share, after line.lua.
--
-- KEYS[1]  lock     string: the holder's lease id, for a reentrant lock followed by "/<owner>". Expires with the lease.
--                   The canonical recipe, nothing else.
-- KEYS[4]  fence    string: the last token. Expires after a day without grant or renewal, or up to
--                   an hour and 100 s earlier.

local LOCK = KEYS[1]

-- Lets an owner in that holds the lock already; only for reentrant locks (enter.lua).
local enter

last_token = function()
  return tonumber(redis.call('GET', FENCE)) or 0
end

-- The token of the grant that still holds; a new one if it is lost.
local function present_token()
  return string.match(redis.call('GET', FENCE) or '', '^[1-9]%d*$') or next_token()
end

admit = function(id, request, token)
  redis.call('SET', FENCE, token, 'PX', FENCE_MS)
  redis.call('SET', LOCK, request.owner and id .. '/' .. request.owner or id, 'PX', request.lease_ms)
  free = 0
  if request.owner then
    -- Whoever else waits for this owner may come in with it, and is told to ask.
    for other in string.gmatch(waiting_for(request.owner), '%S+') do
      tell(other, 'ask ' .. other)
    end
  end
end

