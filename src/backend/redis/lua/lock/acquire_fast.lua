-- The fast path of acquire.lua: the lock is free and nobody waits for it. By far the most frequent case. Answers nothing, and has
-- changed nothing, if the case is another.

local call = redis.call

local function acquire_fast(lock, queue, fence, clock, id, lease_ms, reserve)
  if call('EXISTS', lock, queue) == 0 then
    local token, head, tail = next_token_in_pieces(fence, clock, reserve and tonumber(reserve) or TOKENS_PER_GRANT)
    call('SET', lock, id .. ' ' .. head .. tail, 'PX', lease_ms)
    return token
  end
end

