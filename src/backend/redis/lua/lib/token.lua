-- Fencing tokens.
--
-- fence  string: the token of the last grant of any lock or semaphore of a prefix, 16 digits. Expires a day after the last grant, or
--        up to 100 s earlier.
--
-- Each grant takes up TOKENS_PER_GRANT numbers: so often can a lease be passed on within a client, each time under the next token.
-- A token is the first number that no earlier grant has taken up, or the time in microseconds, whichever is greater: tokens grow
-- while the store remembers, whatever the clock does, and grow when the store has forgotten, because time has passed. They stay
-- below 2^53.

-- To the fields come, once they are known: token and text, the last token issued in this call as a number and as text; keeps, whether
-- the fence is to keep its expiry; shared, the text of a token that all locks may get that are free (acquire_fast.lua); prefix, what
-- messages tell of the prefix (grant.lua). No token is less than `least`.
local function open_fence(key)
  return { key = key, least = LEAST_TOKEN, token = false, text = false, keeps = false, shared = false, prefix = false }
end

-- A new token, as text. The first one of a call is the time if possible: turning a number into text costs more than a command.
local function next_token(fence, clock)
  local token, text, least = fence.token, nil, fence.least
  if token then
    token = math.max(token + TOKENS_PER_GRANT, least)
  else
    local before, now = redis.call('GET', fence.key), clock.us
    local last = tonumber(before) or 0
    -- The first grant within 100 seconds makes the fence last for another day.
    token, fence.keeps = now, before and #before == 16 and now - now % 1e8 <= last
    -- If the clock was set back, or the last grant's numbers reach up to now, they count, if they are tokens.
    if last > now - TOKENS_PER_GRANT and last < 2 ^ 53 then
      token = math.floor(last) + TOKENS_PER_GRANT
    end
    if token < least then
      token = least
    end
    text = token == now and clock.text
  end
  text = text or micros(token)
  fence.token, fence.text = token, text
  return text
end

-- This token was issued with its grant, whatever the fence tells.
local function raise_fence(fence, token)
  fence.least = math.max(fence.least, token + TOKENS_PER_GRANT)
end

-- Writes the last token that was issued. SETRANGE keeps the expiry.
local function close_fence(fence)
  if not fence.token then
    return
  elseif fence.keeps then
    redis.call('SETRANGE', fence.key, '0', fence.text)
  else
    redis.call('SET', fence.key, fence.text, 'PX', FENCE_MS)
  end
end

