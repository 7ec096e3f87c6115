-- What tells a waiter that it holds now. `terms` is the kind, for a semaphore with the limit and its version. The number is how
-- many bytes of the key, which follows, are its prefix: the fence is '{<prefix>}:fence' or '{<tag>}:<prefix>:fence' (keys.rs).
local function grant_message(id, token, ticket, terms, fence, key)
  local prefix = fence.prefix
  if not prefix then
    local at = string.find(fence.key, '}', 1, true)
    prefix = ' ' .. (at == #fence.key - 6 and at - 2 or #fence.key - at - 7) .. ' '
    fence.prefix = prefix
  end
  return GRANT .. ' ' .. id .. ' ' .. token .. ' ' .. ticket .. ' ' .. terms .. prefix .. key
end

