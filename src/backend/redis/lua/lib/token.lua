-- Fencing tokens.
--
-- fence  string: the token of the last grant of any lock or semaphore of a prefix, 16 digits. Expires a day after the last grant, or
--        up to 100 s earlier.
--
-- Each grant takes up TOKENS_PER_GRANT numbers: so often can a lease be passed on within a client, each time under the next token.
-- A token is the first number that no earlier grant has taken up, or the time in microseconds, whichever is greater: tokens grow
-- while the store remembers, whatever the clock does, and grow when the store has forgotten, because time has passed. They stay
-- below 2^53.

-- To the fields come, once they are known: token and text, the last token issued in this call as a number and as text; written,
-- the last one that the server knows of; shared, the text of a token that all locks may get that are free (acquire_fast.lua).
-- No token is less than `least`.
local function open_fence(key)
  return { key = key, least = LEAST_TOKEN, token = false, text = false, written = false, shared = false }
end

-- The first token of a call. Turning a number into text costs more than any command, so it is the time if possible.
local function first_token(fence, clock)
  local token, text = clock.us, clock.text
  local before = tonumber(redis.call('SET', fence.key, text, 'KEEPTTL', 'GET') or 0) or 0
  local gap = token - before
  if gap > token % 1e8 or gap < TOKENS_PER_GRANT or token < fence.least then
    -- The first grant within these 100 seconds: the fence lasts for another day. Or the clock was set back, or the last grant's
    -- numbers reach up to now: they count, if they are tokens.
    if gap < TOKENS_PER_GRANT and before < 2 ^ 53 then
      token = math.floor(before) + TOKENS_PER_GRANT
    end
    token = math.max(token, fence.least)
    text = micros(token)
    redis.call('SET', fence.key, text, 'PX', FENCE_MS)
  end
  fence.token, fence.text, fence.written = token, text, token
  return text
end

-- A new token, as text.
local function next_token(fence, clock)
  if not fence.token then
    return first_token(fence, clock)
  end
  fence.token = math.max(fence.token + TOKENS_PER_GRANT, fence.least)
  fence.text = micros(fence.token)
  return fence.text
end

