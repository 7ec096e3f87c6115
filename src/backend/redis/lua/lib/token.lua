-- Fencing tokens.
--
-- fence  string: the last number issued to any lock or semaphore of a prefix. Expires a day after the last grant.
--
-- A token is the number after the last one or the time in microseconds, whichever is greater: tokens grow while the store
-- remembers, whatever the clock does, and grow when the store has forgotten, because time has passed. They stay below 2^53, and have 16 digits.
--
-- The fence is read and written at the first grant of a call, and written once more at the end if there were others.

local sub = string.sub

-- `next` is the first number that is free, `written` the last one that the server knows to be issued, and `least` the first one
-- that may be free; `head` are the digits, but for the last two, of a token that lies `high` and less than 100 above.
local function open_fence(key)
  return { key = key, next = false, written = 0, least = LEAST_TOKEN, high = false, head = false }
end

local function write_fence(fence, last)
  redis.call('SET', fence.key, micros(last), 'PX', FENCE_MS)
  fence.written = last
end

local function meet_fence(fence, clock, count)
  local last = clock.us + count - 1
  local text = count == 1 and clock.text or micros(last)
  local before = tonumber(redis.call('SET', fence.key, text, 'PX', FENCE_MS, 'GET') or 0) or 0
  -- What is no token is not counted.
  if not (before >= 0 and before < 2 ^ 53) then
    before = 0
  end
  fence.next, fence.written = math.max(math.floor(before) + 1, fence.least), last
  if fence.next > clock.us then
    write_fence(fence, fence.next + count - 1)
  end
end

-- A new token, and as many numbers after it as make `count`: a lease can be passed on so often within a client, each time under
-- the next one. Returns it as a number, and its text in two pieces, for whoever puts that together with more.
local function next_token_in_pieces(fence, clock, count)
  local token = fence.next
  if not token then
    meet_fence(fence, clock, count)
    token = fence.next
  end
  if token <= clock.us then
    fence.next = clock.us + count
    return clock.us, clock.text, ''
  end
  fence.next = token + count
  -- Of the tokens of one call, most differ in the last two digits only.
  local low = token % 100
  if fence.high ~= token - low then
    fence.high, fence.head = token - low, string.sub(micros(token), 1, -3)
  end
  return token, fence.head, sub(HUNDRED, 2 * low + 1, 2 * low + 2)
end

local function next_token(fence, clock, count)
  local token, head, tail = next_token_in_pieces(fence, clock, count)
  return token, head .. tail
end

-- This token was issued with its grant, should the fence have been lost.
local function raise_fence(fence, token)
  fence.least = math.max(fence.least, token + TOKENS_PER_GRANT)
  if fence.next then
    fence.next = math.max(fence.next, fence.least)
  end
end

local function close_fence(fence)
  if fence.next and fence.next - 1 > fence.written then
    write_fence(fence, fence.next - 1)
  end
end

