-- The fence, from which fencing tokens come.
--
-- fence  string: the last token of any lock of a prefix, 16 digits; for semaphores, not less than the last token of any
--        (semaphore/token.lua). Expires a day after the last grant, or up to 100 s earlier.
--
-- A grant reserves TOKENS_PER_GRANT numbers, one for each hold of its lease within a client, each under the next token.
-- A token is the first number that no earlier grant has reserved, or the time in microseconds, whichever is greater:
-- tokens increase while the store keeps its data, whatever the clock does, and after it has lost its data, because time
-- has passed. They stay below 2^53: a fence that leaves no room for that was written by another program, and counts for
-- nothing. The fence is written before anything is granted: a server that refuses to write it refuses the grant.

-- `least`: no token may be less. Fields that are added once known: token, the last one issued in this call; shared, the
-- text of a token that all free locks may get (acquire.lua); prefix, what messages say about the prefix (grant.lua). In
-- a batch, `unwritten` is false at first: then a call's first token is written at once, and the last of the others at
-- the end, which a server that has accepted the first write cannot refuse.
local function open_fence(key, unwritten)
  return { key = key, least = 0, token = false, unwritten = unwritten, shared = false, prefix = false }
end

-- Replaces the fence's token, and returns the old one as a number; 0 if there was none.
local function exchange(key, text)
  local last = math.floor(tonumber(call('SET', key, text, 'KEEPTTL', 'GET') or 0) or 0)
  return last < FENCE_LIMIT and last or 0
end

-- The last token, as a number; 0 if there was none. That of this call may not be written yet.
local function last_token(fence)
  local last = fence.token or tonumber(call('GET', fence.key) or 0) or 0
  return last < FENCE_LIMIT and last or 0
end

-- This token, not less than the last one, has been written for something else than the grant of a lock.
local function note_written(fence, token)
  fence.token = token
  if fence.unwritten then fence.unwritten = false end
end

-- A new token, as text. The first one of a call is the time if possible: to write a number costs more than a command.
local function next_token(fence, clock)
  local key, token, now, text = fence.key, fence.token, clock.us, clock.text
  if token then
    token = math.max(token + TOKENS_PER_GRANT, fence.least)
    text = micros(token)
    if fence.unwritten == nil then
      call('SET', key, text, 'KEEPTTL')
    else
      fence.unwritten = text
    end
  else
    local last = exchange(key, text)
    token = math.max(last + TOKENS_PER_GRANT, now, fence.least)
    if token ~= now then text = micros(token) end
    -- The first grant within 100 seconds makes the fence last for another day.
    if token ~= now or now - last > now % 1e8 then call('SET', key, text, 'PX', FENCE_MS) end
  end
  fence.token = token
  return text
end

-- This token was issued with its grant, no matter what the fence says.
local function raise_fence(fence, token)
  fence.least = math.max(fence.least, (tonumber(token) or 0) + TOKENS_PER_GRANT)
end
