-- Returns who holds permits and who waits for them. Changes nothing.
--
-- ARGV[1]  FULL, SUMMARY for the number of waiters instead of a list of them and SUMMARY_HOLDERS at most, or COUNTS for
--          empty lists
--
-- Returns  {limit in force or nil, permits in use, {lease id, ms for which it counts as alive, permits, ticket, ...},
--           live ones only, {lease id, ms until its lease ends, permits, token, ...} by that time, now in us}

local s = semaphore_at(KEYS[1], queue_of(KEYS), nil, nil, read_clock())
local now = s.clock.ms
local now_text = millis(now)

local function hold(id)
  local permits, token = match(call('HGET', s.holds, id) or '', '^(%d+) (%d+)$')
  return tonumber(permits or 0), token
end

local limit, used = s.limit, s.used
if not used or call('EXISTS', s.key) == 0 then
  -- The state was lost, or the holders are gone.
  used = 0
  for _, id in ipairs(call('ZRANGE', s.key, 0, -1)) do
    used = used + hold(id)
  end
end
for _, id in ipairs(call('ZRANGEBYSCORE', s.key, '-inf', now_text)) do
  used = used - hold(id)
end
if limit and has_lapsed(s) then limit = nil end

local waiters, holders = {}, {}
if ARGV[1] ~= COUNTS then
  local full = ARGV[1] == FULL
  waiters = full and living(s.waiters, now) or count_waiters(sub(queue_of(KEYS), 1, -6), now)
  local most = full and -1 or SUMMARY_HOLDERS
  local held = call('ZRANGEBYSCORE', s.key, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #held, 2 do
    local permits, token = hold(held[i])
    for _, part in ipairs({ held[i], tonumber(held[i + 1]) - now, permits, token or '0' }) do
      table.insert(holders, part)
    end
  end
end
return { limit or false, used, waiters, holders, s.clock.text }
