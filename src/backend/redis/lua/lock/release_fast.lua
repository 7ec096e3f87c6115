-- The fast path of release.lua in a batch: the lease holds the lock and nobody waits for it. Answers nothing, and has changed
-- nothing, if the case is another.

local sub = string.sub

local function release_fast(lock, queue, fence, id)
  local value = call('GET', lock)
  -- A token has 16 digits: so what follows the id is a token and nothing else.
  if value and #value == #id + 17 and sub(value, 1, #id) == id and call('EXISTS', queue) == 0 then
    call('DEL', lock)
    if fence.shared and sub(value, -16) == fence.shared then
      fence.shared = false
    end
    return RELEASED
  end
end

