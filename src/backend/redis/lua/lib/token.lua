-- Fencing tokens.
--
-- fence  string: the last token of any lock, or any semaphore, of a prefix, 16 digits. Expires a day after the last grant, or up
--        to 100 s earlier.
--
-- A grant takes up TOKENS_PER_GRANT numbers: so often can a lease be passed on within a client, each time under the next token. A
-- token is the first number that no earlier grant has taken up, or the time in microseconds, whichever is greater: tokens grow
-- while the store remembers, whatever the clock does, and grow when the store has forgotten, because time has passed. They stay
-- below 2^53.
--
-- The fence is written before anything is granted. A server that refuses to write it thereby refuses the grant.

-- `least`: no token may be less. To the fields come, once they are known: token, the last one issued in this call; shared, the
-- text of a token that all locks may get that are free (acquire_fast.lua); prefix, what messages tell of the prefix (grant.lua).
-- In a batch, `unwritten` is false at first: then a call's first token is written at once, and of the others the last one at the
-- end, which a server that has accepted the first write cannot refuse.
local function open_fence(key, unwritten)
  return { key = key, least = 0, token = false, unwritten = unwritten, shared = false, prefix = false }
end

-- A new token, as text. The first one of a call is the time if possible: turning a number into text costs more than a command.
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
    local last = tonumber(call('SET', key, text, 'KEEPTTL', 'GET') or 0) or 0
    local gap = now - last
    -- If the clock was set back, or the last grant's numbers reach up to now, they count, if they are tokens.
    token = math.max(gap < TOKENS_PER_GRANT and last < 2 ^ 53 and math.floor(last) + TOKENS_PER_GRANT or now, fence.least)
    if token ~= now then text = micros(token) end
    -- The first grant within 100 seconds makes the fence last for another day.
    if token ~= now or gap > now % 1e8 then call('SET', key, text, 'PX', FENCE_MS) end
  end
  fence.token = token
  return text
end

-- This token was issued with its grant, whatever the fence tells.
local function raise_fence(fence, token)
  fence.least = math.max(fence.least, (tonumber(token) or 0) + TOKENS_PER_GRANT)
end
