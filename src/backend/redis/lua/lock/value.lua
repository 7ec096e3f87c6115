-- The value of a lock's key: "<lease id> <token>", followed by WAITED_FOR if there may be waiters, or by "/<owner>" for
-- a reentrant lock. The canonical recipe: locks of other libraries, whose values have another form, exclude these, and
-- vice versa. The mark saves the release of a mutex a look at the queue. A request that joins the queue sets it, and
-- one that gets the lock on a slow path, which is taken if there is a queue.

-- Lease id, token and owner; nil for the value of another library.
local function read_value(value)
  local id, token, rest = match(value or '', '^(%x+%-%x+%-%x+%-%x+%-%x+%.%d+) (%d+)' .. '%' .. WAITED_FOR .. '?(.*)$')
  if not id or not (rest == '' or sub(rest, 1, 1) == '/') then return nil end
  return id, token, rest ~= '' and sub(rest, 2) or nil
end

-- Sets the mark, if this is the lock of a mutex of ours.
local function mark_waited_for(key, value)
  local id, _, owner = read_value(value)
  if id and not owner then call('APPEND', key, WAITED_FOR) end
end

local function write_value(id, token, owner)
  return owner and id .. ' ' .. token .. '/' .. owner or id .. ' ' .. token .. WAITED_FOR
end

-- Whether the value of a lock's key (value.lua) names lease `id`.
local function names_lease(value, id) return sub(value, 1, #id) == id and string.byte(value, #id + 1) == 32 end
