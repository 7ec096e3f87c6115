-- Returns who holds the lock and who waits for it. Changes nothing.
--
-- ARGV[1]  FULL, SUMMARY for the number of waiters instead of a list of them and SUMMARY_HOLDERS at most, or COUNTS for
--          empty lists
--
-- Returns  {what is stored under the lock or nil, ms until that ends (-1 never, -2 there is nothing),
--           {lease id, ms for which it counts as alive, permits, ticket, ...}, live ones only,
--           {lease id, ms until it ends, ...} of the owner's holds if there are several, now in us}

local value, holds, waiters, clock = call('GET', KEYS[1]), {}, {}, read_clock()
if ARGV[1] ~= COUNTS then
  local now = clock.ms
  local stem = sub(queue_of(KEYS), 1, -6)
  waiters = ARGV[1] == FULL and living(stem .. 'waiters', now) or count_waiters(stem, now)
  local lead, _, owner = read_value(value)
  if owner and call('ZSCORE', stem .. 'holds', lead) then
    local most = ARGV[1] == FULL and -1 or SUMMARY_HOLDERS
    local several = call('ZRANGEBYSCORE', stem .. 'holds', millis(now), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    for i, part in ipairs(several) do
      table.insert(holds, i % 2 == 1 and part or tonumber(part) - now)
    end
  end
end
return { value, call('PTTL', KEYS[1]), waiters, holds, clock.text }
