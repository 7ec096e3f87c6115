-- Returns who holds each of many locks and semaphores, and how many wait for it. Changes nothing. Ends early when it
-- has looked at more than LISTED_HOLDERS holders and waiters: the caller asks again for the others.
--
-- KEYS  of each, its first key and its queue
--
-- Returns  {now in us, one answer for each of the first ones}:
--          {A_LOCK, what is stored under the lock or nil, ms until that ends, waiters,
--           {lease id, ms until it ends, ...} of the owner's holds if there are several}
--          {A_SEMAPHORE, 1 for a counting one, 0 for a fair one, nil if that is not known, waiters,
--           {lease id, ms until its lease ends, permits, token, ...} of the first LISTED_HOLDERS}
--          nil for what is not held by us and not awaited

local clock = read_clock()
local now, now_text = clock.ms, millis(clock.ms)
local looked_at = 0

local function count(stem)
  local waiters = count_waiters(stem, now)
  looked_at = looked_at + waiters
  return waiters
end

-- As its state says (state.lua); not all versions have written that.
local function is_counting(stem)
  local intact, values = pcall(function() return { cmsgpack.unpack(call('GET', stem .. 'state')) } end)
  local by_size = intact and values[12]
  if type(by_size) ~= 'boolean' then return false end
  return by_size and 1 or 0
end

local function list_semaphore(key, stem)
  local holders = {}
  local held = redis.pcall('ZRANGEBYSCORE', key, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', '0', LISTED_HOLDERS)
  looked_at = looked_at + #held / 2
  for i = 1, #held, 2 do
    local record = redis.pcall('HGET', stem .. 'holds', held[i])
    local permits, token = match(type(record) == 'string' and record or '', '^(%d+) (%d+)$')
    if permits then
      for _, part in ipairs({ held[i], tonumber(held[i + 1]) - now, tonumber(permits), token }) do
        table.insert(holders, part)
      end
    end
  end
  local waiters = count(stem)
  return (holders[1] or waiters > 0) and { A_SEMAPHORE, is_counting(stem), waiters, holders }
end

local function list_lock(key, stem)
  local left = redis.pcall('PTTL', key)
  -- All that is ours expires. What does not is only of interest to those who wait for it.
  if left == -1 and count(stem) == 0 then return false end
  -- Not all of it: the values of other programs may be large.
  local value = redis.pcall('GETRANGE', key, 0, LISTED_BYTES)
  -- Something else than a text is stored there.
  if type(value) == 'table' then return list_semaphore(key, stem) end
  value = value ~= '' and value
  local id, _, owner = read_value(value)
  -- A mutex of ours without the mark has no waiters (value.lua).
  local waiters = (not id or owner or sub(value, -1) == WAITED_FOR) and count(stem) or 0
  if not id and waiters == 0 then return false end
  if not value and redis.pcall('EXISTS', stem .. 'state') == 1 then return { A_SEMAPHORE, is_counting(stem), waiters, {} } end
  local holds = {}
  if owner and type(redis.pcall('ZSCORE', stem .. 'holds', id)) == 'string' then
    local several = call('ZRANGEBYSCORE', stem .. 'holds', now_text, '+inf', 'WITHSCORES', 'LIMIT', '0', LISTED_HOLDERS)
    looked_at = looked_at + #several / 2
    for i, part in ipairs(several) do
      table.insert(holds, i % 2 == 1 and part or tonumber(part) - now)
    end
  end
  return { A_LOCK, value, left, waiters, holds }
end

local answers = { clock.text }
for i = 1, #KEYS, 2 do
  if looked_at > LISTED_HOLDERS then break end
  answers[#answers + 1] = list_lock(KEYS[i], sub(KEYS[i + 1], 1, -6))
end
return answers
