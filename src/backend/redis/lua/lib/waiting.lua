-- How many waiters that count as alive there are, at the keys that begin with `stem`. Of a queue with more than
-- COUNTED_PLACES, all places are counted, those of the dead included, so that no queue takes long.
local function count_waiters(stem, now_ms)
  local places = redis.pcall('ZCARD', stem .. 'queue')
  if type(places) ~= 'number' or places == 0 or places > COUNTED_PLACES then return tonumber(places) or 0 end
  local intact, waiters = pcall(living, stem .. 'waiters', now_ms)
  return intact and #waiters / 4 or 0
end
