-- Whether the value of a lock's key (value.lua) names lease `id`.
local function names_lease(value, id)
  return sub(value, 1, #id) == id and string.byte(value, #id + 1) == 32
end

