-- Requests the lock, for the first time or again.
--
-- ARGV[1]  lease id
-- ARGV[2]  TTL, in ms, DEFAULT_TTL_MS if absent
-- ARGV[3]  '1' or absent to wait if another client holds the lock, '0' not to
-- ARGV[4]  expiry in ms for a lock that has none, '0' or absent to leave such a lock alone
-- ARGV[5]  the owner of a reentrant lock, '' or absent for a mutex
-- ARGV[6]  for one of several servers that must agree on a token: a proposed one, 16 digits, absent otherwise. The
--          token is not less, so servers with the same proposal usually agree; but no proposal counts for more than
--          PROPOSED_AHEAD_US after the last token and the time, so no client's clock pushes tokens into the far future.
--
-- Returns  the token if granted now; {token, ms until the lease ends} if it was granted before
--          {ms until the holder's lease or a gap ends or -1, waiters before this one, ticket} if queued
--          BUSY if another client holds the lock and this request does not wait
--
-- Idempotent per lease id: the holder gets its token again, and its lease continues unchanged, so that a client that
-- receives no answers does not keep the lock; a waiter keeps its place, and counts as alive for another TTL. If the
-- lock is free but others wait, it goes to the oldest of them.

-- Admits an owner that already holds the lock, under another lease. It overtakes all waiters: they wait for this owner.
local function enter(r, id, ttl_ms, owner)
  local lead, token, owned_by, several = expire_holds(r)
  if not lead or owned_by ~= owner or (lead == id and not several) then return nil end
  local ends = several and call('ZSCORE', r.holds, id)
  if ends then return { token, ends - r.clock.ms } end
  if not several then
    call('DEL', r.holds)
    call('ZADD', r.holds, millis(r.clock.ms + math.max(call('PTTL', r.key), 1)), lead)
  end
  call('ZADD', r.holds, millis(r.clock.ms + ttl_ms), id)
  expire_with_holds(r)
  remove(r, id)
  return token
end

local function acquire(r, id, ttl_ms, waits, repair_ms, owner, proposed)
  ttl_ms = tonumber(ttl_ms or DEFAULT_TTL_MS)
  if owner == '' then owner = nil end
  if proposed then
    local fence = r.fence
    local most = math.max(last_token(fence), r.clock.us) + PROPOSED_AHEAD_US
    fence.least = math.max(fence.least, math.min(tonumber(proposed), most))
  end
  local entered = owner and enter(r, id, ttl_ms, owner)
  if entered then return entered end
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
    token = token or (owner and enter(r, id, ttl_ms, owner))
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

-- A fast path returns nothing, and changes nothing, in all cases but the one for which it is. By far the most frequent
-- one: the lock is free and has no waiters. Tokens of different locks need not differ, so all locks granted here get
-- the same one, until one of them is released in the same call, or a slow path has granted something.
local function acquire_fast(lock, queue, fence, clock, id, ttl_ms, owner)
  if call('EXISTS', lock, queue) == 0 then
    local token = fence.shared
    if not token then
      token = next_token(fence, clock)
      fence.shared = token
    end
    call('PSETEX', lock, ttl_ms, id .. ' ' .. (owner and token .. '/' .. owner or token))
    return token
  end
end

-- A new request must wait for a mutex that has had waiters, so that it is marked (value.lua).
local function join_fast(lock, queue, waiters, clock, id, ttl_ms)
  local value, remaining = call('GET', lock), call('PTTL', lock)
  if not value or sub(value, -1) ~= WAITED_FOR or remaining < 0 or names_lease(value, id) then return end
  local newest, ticket = call('ZREVRANGE', queue, '0', '0')[1], clock.text
  local before = newest and call('ZCARD', queue) or 0
  -- One in fifty takes the slow path, which prunes, and so does the one that makes the queue long enough for an index.
  if (newest and newest >= ticket) or clock.us % PRUNE_EVERY == 0 or before == INDEXED_AT then return end
  local record = ticket .. ' ' .. ttl_ms .. ' ' .. millis(clock.ms + ttl_ms) .. ' 1'
  if call('HSETNX', waiters, id, record) == 0 then return end
  call('ZADD', queue, '1', ticket .. ' ' .. id)
  keep(queue, waiters, ttl_ms)
  return { remaining, before, ticket }
end

-- A request that already waits, while another client holds the lock: the waiter counts as alive for another TTL.
-- Waiting requests are repeated together, so this is for batches. `seen` is the queue used by the previous operation,
-- as long as nothing else may have changed in it.
local function look_at_queue(lock, queue)
  return {
    lock = lock, value = call('GET', lock), remaining = call('PTTL', lock),
    kept = call('PTTL', queue), unreachable = call('ZCOUNT', queue, '-inf', '(0'),
  }
end

local function acquire_again_fast(seen, lock, queue, waiters, clock, id, ttl_ms)
  local ticket = match(call('HGET', waiters, id) or '', '^(%d+) %d+ %d+ 1$')
  if not ticket then return nil, seen end
  if not seen or seen.lock ~= lock then seen = look_at_queue(lock, queue) end
  local before = call('ZRANK', queue, ticket .. ' ' .. id)
  -- The lock is free or has no expiry, or this request holds it or must get its place back.
  if seen.remaining < 0 or names_lease(seen.value, id) or not before or before < seen.unreachable then
    return nil, seen
  end
  call('HSET', waiters, id, ticket .. ' ' .. ttl_ms .. ' ' .. millis(clock.ms + ttl_ms) .. ' 1')
  if seen.kept < ttl_ms * 1.5 then
    seen.kept = ttl_ms * 2
    call('PEXPIRE', queue, seen.kept)
    call('PEXPIRE', waiters, seen.kept)
  end
  return { seen.remaining, before, ticket }, seen
end

-- One of these two. The slow path finds by itself whatever goes wrong in them.
local function wait_fast(seen, lock, queue, clock, id, ttl_ms)
  local waiters = sub(queue, 1, -6) .. 'waiters'
  local done, answer, still_seen = pcall(acquire_again_fast, seen, lock, queue, waiters, clock, id, ttl_ms)
  if not done then return nil, nil end
  if not answer then
    done, answer = pcall(join_fast, lock, queue, waiters, clock, id, ttl_ms)
  end
  return done and answer, still_seen
end
