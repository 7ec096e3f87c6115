-- Whether what is stored under the key of a lock (value.lua) is that of lease `id`.
local function names_lease(value, id)
  return sub(value, 1, #id) == id and string.byte(value, #id + 1) == 32
end

