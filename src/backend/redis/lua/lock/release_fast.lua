-- The fast paths of release.lua. They return nothing, and change nothing, in other cases.

-- The lease holds the lock, and nobody waits for it. Also returns what is stored there.
local function release_fast(lock, fence, id)
  local value = call('GET', lock)
  -- A token has 16 digits, so what follows the id is a token and nothing else, not even the mark of waiters
  -- (value.lua).
  if value and #value == #id + 17 and string.find(value, id, 1, true) == 1 then
    call('DEL', lock)
    if fence.shared and string.find(value, fence.shared, #id + 2, true) then fence.shared = false end
    return RELEASED
  end
  return nil, value
end
