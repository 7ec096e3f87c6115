-- The fast path of release.lua: the lease holds the lock and nobody waits for it. Answers nothing, and has changed nothing, if the
-- case is another.

local call, sub = redis.call, string.sub

local function release_fast(lock, queue, id)
  local value = call('GET', lock)
  -- A token has 16 digits: so what follows the id is a token and nothing else.
  if value and #value == #id + 17 and sub(value, 1, #id) == id and call('EXISTS', queue) == 0 then
    call('DEL', lock)
    return RELEASED
  end
end

