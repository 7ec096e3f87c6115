-- The fence, from which fencing tokens come.
--
-- fence  string: the last token of any lock of a prefix, 16 digits; for semaphores, not less than the last token of any
--        (semaphore/token.lua). Expires a day after the last grant, or up to 100 s earlier.
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

-- Replaces what the fence tells, and returns it as a number; 0 if it tells no token.
local function exchange(key, text)
  local last = math.floor(tonumber(call('SET', key, text, 'KEEPTTL', 'GET') or 0) or 0)
  return last < 2 ^ 53 and last or 0
end

