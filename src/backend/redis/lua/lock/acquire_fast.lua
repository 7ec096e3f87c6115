-- The fast path of acquire.lua in a batch: the lock is free and has no waiters. By far the most frequent case. Returns
-- nothing, and changes nothing, in other cases.
--
-- Tokens of one lock must increase; those of different locks need not differ. So all locks granted here get the same
-- token, until one of them is released in the same call (release_fast.lua), or a slow path has granted something.

local function acquire_fast(lock, queue, fence, clock, id, ttl_ms)
  if call('EXISTS', lock, queue) == 0 then
    local token = fence.shared
    if not token then
      token = next_token(fence, clock)
      fence.shared = token
    end
    call('SET', lock, id .. ' ' .. token, 'PX', ttl_ms)
    return token
  end
end

