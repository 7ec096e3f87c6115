-- Requests the lock, for the first time or again.
--
-- KEYS     as in lock.lua
-- ARGV[1]  lease id
-- ARGV[2]  TTL, in ms
-- ARGV[3]  '1' or absent to wait if another client holds the lock, '0' not to
-- ARGV[4]  expiry in ms for a lock that has none, '0' or absent to leave such a lock alone
-- ARGV[5]  the owner of a reentrant lock, absent for a mutex
--
-- Returns  the token if granted now
--          {token, ms until the lease ends} if it was granted before
--          {ms until the holder's lease ends or -1, waiters before this one, unreachable ones included, ticket} if queued
--          BUSY if another client holds the lock and this request does not wait
--          In a gap (gap.lua), a request that waits is queued until it ends. One that does not wait gets the lock if nobody waits.
--
-- Idempotent per lease id: the holder gets its token again, and its lease continues unchanged, so that a client that
-- sends requests but receives no answers does not keep the lock. A waiter keeps its place and counts as alive for
-- another TTL. So this one request proves that a waiter is alive, finds an expired holder, finds a grant whose
-- message was lost, and rejoins the queue after the store has lost its data. If the lock is free but others wait, it
-- goes to the oldest of them.

-- `enter` admits an owner that already holds the lock (acquire_owned.lua).
local function acquire(r, enter, id, ttl_ms, waits, repair_ms, owner)
  ttl_ms = tonumber(ttl_ms)
  local value = call('GET', r.key)
  local own, held, held_for
  if value and names_lease(value, id) then own, held, held_for = read_value(value) end
  if own and held_for == owner then
    local left = call('PTTL', r.key)
    if left < 0 then
      left = ttl_ms
      call('PEXPIRE', r.key, left)
    end
    return { held, left }
  end

  local ticket, others
  if waits ~= '0' then
    ticket, others = join_queue(r, id, ttl_ms, 1, owner)
    if value and sub(value, -1) ~= WAITED_FOR then mark_waited_for(r.key, value) end
  end
  local gap = not value and gap_left(r)
  if not value and (not gap or (waits == '0' and not next_place(r))) then
    r.free = 1
    local token = hand_over(r, id)
    if not token and r.free == 1 then
      token = next_token(r.fence, r.clock)
      hold_lock(r, id, { ttl_ms = ttl_ms, owner = owner, token = token })
    end
    -- Its owner may have been admitted under another lease.
    token = token or (enter and enter(r, id, ttl_ms, owner))
    if token then return token end
  end
  local remaining = gap or call('PTTL', r.key)
  if remaining == -1 and (tonumber(repair_ms) or 0) > 0 then
    call('PEXPIRE', r.key, repair_ms)
    remaining = tonumber(repair_ms)
  end
  if waits == '0' then return BUSY end
  local before = others or call('ZRANK', r.queue, ticket .. ' ' .. id) or 0
  return { remaining, gap and before - 1 or before, ticket }
end

local function acquire_sole(r, ...)
  return acquire(r, nil, ...)
end

