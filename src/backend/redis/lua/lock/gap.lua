-- Gaps: times for which requests of this crate leave a free lock alone, for clients of other libraries, which poll.
--
-- A gap is the member GAP of the queue, scored by minus the time, in ms, until which it lasts. So no hand-over looks at
-- it (queue.lua), and because there is a queue, no fast path applies to a free lock. After its end, the next request
-- that finds the lock free, or that leaves the queue, removes it. A queue with nothing else expires with it.

-- For how many more ms a gap lasts; nil if there is none.
local function gap_left(r)
  local ends = -(call('ZSCORE', r.queue, GAP) or 0)
  if ends > r.clock.ms and ends <= r.clock.ms + LONGEST_GAP_MS then return ends - r.clock.ms end
  if ends ~= 0 then call('ZREM', r.queue, GAP) end
end

-- Makes sure that the lock is taken up after a gap, by the waiter that is first then.
local function tend_gap(r, gap_ms)
  if call('ZCARD', r.queue) == 1 then
    call('PEXPIREAT', r.queue, millis(r.clock.ms + gap_ms))
  else
    r.free, r.in_gap = 1, true
    hand_over(r)
  end
end

-- Leaves the lock free for this long.
local function leave_gap(r, gap_ms)
  call('ZADD', r.queue, '-' .. millis(r.clock.ms + gap_ms), GAP)
  tend_gap(r, gap_ms)
end
