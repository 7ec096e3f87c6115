-- What tells a waiter that it holds now. `terms` is the kind, for a semaphore with the limit and its version. The number is how many
-- bytes of the key, which follows, are its prefix: the fence is '{<prefix>}:fence' or '{<tag>}:<prefix>:fence' (keys.rs).
local function grant_message(id, token, ticket, terms, fence)
  local at = string.find(fence, '}', 1, true)
  local prefix = at == #fence - 6 and at - 2 or #fence - at - 7
  return string.format('%s %s %s %s %s %d', GRANT, id, token, ticket, terms, prefix)
end

