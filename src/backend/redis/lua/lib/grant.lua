-- What a waiter must know about its grant besides lease, token and ticket: the kind, for a semaphore with the limit and
-- its version; how many bytes of the key are its prefix; the key. The fence is '{<prefix>}:fence' or
-- '{<tag>}:<prefix>:fence' (keys.rs).
local function terms_of(kind, fence, key)
  local prefix = fence.prefix
  if not prefix then
    local at = string.find(fence.key, '}', 1, true)
    prefix = ' ' .. (at == #fence.key - 6 and at - 2 or #fence.key - at - 7) .. ' '
    fence.prefix = prefix
  end
  return kind .. prefix .. key
end

-- The message that tells a waiter that it is now a holder.
local function grant_message(id, token, ticket, terms)
  return GRANT .. ' ' .. id .. ' ' .. token .. ' ' .. ticket .. ' ' .. terms
end

-- The fast path of a hand-over: to the waiter at this place, if it wants one permit for at most this many ms, is alive,
-- and is reachable; a waiter of client `asker` is notified with the answer. Removes it from the queue, and returns its
-- lease id, its token, when its lease ends, in ms, as text, what to send with the answer, and its TTL in ms. In other
-- cases, returns nothing and changes nothing.
local function grant_fast(place, queue, waiters, terms, longest, clock, issue, issuer, asker)
  local id = sub(place, 18)
  -- "ticket ttl_ms alive_until_ms permits", the first with 16 digits, the third with 13; and no owner.
  local record = call('HGET', waiters, id) or ''
  local ttl_ms, ends = tonumber(sub(record, 18, -17)), sub(record, -15, -3)
  if not ttl_ms or sub(record, -2) ~= ' 1' or (longest and ttl_ms > longest) then return end
  -- Times of as many digits compare as texts do, and the first 13 of microseconds are milliseconds.
  if ends <= sub(clock.text, 1, 13) then return end
  local token, client = issue(issuer, clock), sub(id, 1, 36)
  local message = grant_message(id, token, sub(place, 1, 16), terms)
  if client ~= asker and call('PUBLISH', CHANNEL_PREFIX .. client, message) == 0 and not IN_CLUSTER then return end
  call('HDEL', waiters, id)
  call('ZREM', queue, place)
  -- It ends when the place would have ended: the waiter measures it from its last request.
  return id, token, ends, client == asker and message, ttl_ms
end
