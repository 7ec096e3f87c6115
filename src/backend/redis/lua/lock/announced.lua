-- The lock of an election: those who observe it are told when another lease holds it, or none does.

-- Who holds a lock: what is stored there without the mark of waiters (value.lua).
local function holder_of(lock)
  local value = call('GET', lock)
  return value and match(value, '^%S+ %d+') or value
end

-- Carries out an operation, and publishes an empty message on the channel of the election if the holder is another one
-- since. An operation that fails tells nobody: observers also look from time to time.
local function announced(operation, r, ...)
  local before = holder_of(r.key)
  local answer = operation(r, ...)
  if holder_of(r.key) ~= before then call('PUBLISH', CHANGES_PREFIX .. r.key, '') end
  return answer
end
