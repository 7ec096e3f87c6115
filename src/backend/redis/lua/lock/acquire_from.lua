-- Requests a lock, for the first time or again, with a token not less than a proposed one. Several servers that get the
-- same proposal usually answer with the same token.
--
-- KEYS     as in lock.lua
-- ARGV[1]  the proposed token, 16 digits
-- ARGV[2]  and the following: as in acquire.lua
--
-- Returns and repetition as in acquire.lua. A proposal that is further ahead of the last token and of this server's
-- time than PROPOSED_AHEAD_US counts for no more than that: a client whose clock is wrong cannot push the tokens into
-- the far future.

local function acquire_from(r, proposed, id, ttl_ms, waits, repair_ms, owner)
  local fence = r.fence
  local last = math.max(tonumber(call('GET', fence.key) or 0) or 0, fence.token or 0)
  if not (last < FENCE_LIMIT) then last = 0 end
  local most = math.max(last, r.clock.us) + PROPOSED_AHEAD_US
  fence.least = math.max(fence.least, math.min(tonumber(proposed), most))
  if owner then return acquire_owned(r, id, ttl_ms, waits, repair_ms, owner) end
  return acquire(r, nil, id, ttl_ms, waits, repair_ms)
end
