-- Asks for permits, or asks again.
--
-- ARGV[2]  lease id
-- ARGV[3]  lease, in ms
-- ARGV[4]  '1' to wait if there are not enough permits, '0' to leave at once
-- ARGV[5]  how many permits
-- ARGV[6]  the limit that the request states
-- ARGV[7]  the reign in which it met that limit, '0' if in none
--
-- Returns  {'granted', limit, reign, token}
--          {'granted', limit, reign, token, ms until the lease ends} if it was granted before
--          {'queued', limit, reign, ms until the next lease of a holder ends or -1, places before this one, ticket}
--          {'busy', limit, reign}
--          {'differs', limit} if another limit is in force
--          {'above', limit} if nobody can have so many
--
-- The number of places feeds the stagger of repetitions only: it counts parked ones, and for a counting semaphore all
-- that ask for less.
--
-- Idempotent per lease id, as the request for a lock. Whoever asks serves the line on the way, so that what a holder
-- who has died has left goes to the next.

local id, lease_ms, waits, permits = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
local stated = tonumber(ARGV[6])

-- What a holder who has died has left goes to the next whatever the answer is. A server that has no memory left may refuse that.
local held = settle(id)
if held then
  -- Granted before, and the answer got lost: whatever has become of the limit since.
  local left = redis.call('ZSCORE', HOLDERS, id) - now_ms
  pcall(serve)
  return { 'granted', limit or stated, reign or '0', string.match(held, '%d+$'), left }
end
local differs = limit and reign ~= ARGV[7] and stated ~= limit and not waiter(id)
if differs or permits > (limit or stated) then
  pcall(serve)
  return { differs and 'differs' or 'above', limit or stated }
end
if not limit or not reign then
  put_in_force(limit or stated, lease_ms)
end

local line = redis.call('EXISTS', QUEUE) == 1
if waits and (line or permits > free) then
  local ticket, others = stand_in_line(id, lease_ms, permits)
  local token = serve(id)
  if token then
    return { 'granted', limit, reign, token }
  end
  return { 'queued', limit, reign, ends and ends - now_ms or -1, places_before(ticket, id, others), ticket }
end
if line then
  serve()
end
-- Nobody in line fits. Where nobody may be passed, there must be nobody.
if permits > free or (line and not by_size and redis.call('ZCOUNT', QUEUE, 1, '+inf') > 0) then
  return { 'busy', limit, reign }
end
local token = next_token()
admit(id, { lease_ms = lease_ms, permits = permits }, token)
return { 'granted', limit, reign, token }
