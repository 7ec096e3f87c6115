-- What stands under the key of a lock: "<lease id> <token>", for a reentrant lock followed by "/<owner>". Set only if absent, with
-- an expiry, and deleted by comparison: the canonical recipe, so that other libraries' locks exclude these and are excluded. What
-- they put there has another form.

-- Whether `value` is that of lease `id`.
local function names_lease(value, id)
  return string.sub(value, 1, #id) == id and string.byte(value, #id + 1) == 32
end

-- Lease id, token and owner; nil for what another library has put there.
local function read_value(value)
  local id, token, rest = string.match(value or '', '^(%x+%-%x+%-%x+%-%x+%-%x+%.%d+) (%d+)(.*)$')
  if not id or not (rest == '' or string.sub(rest, 1, 1) == '/') then
    return nil
  end
  return id, token, rest ~= '' and string.sub(rest, 2) or nil
end

local function write_value(id, token, owner)
  return owner and id .. ' ' .. token .. '/' .. owner or id .. ' ' .. token
end

