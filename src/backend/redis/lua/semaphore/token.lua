-- The tokens of a semaphore. The rule is that of fence.lua, but the state has the last token, and the fence is for when
-- the state has expired. So the fence is never below an issued token. If the last grant was less than FENCE_AHEAD_US
-- ago, it is written that far ahead, so that the next calls need not write it; no further, because a store that has
-- lost its data issues greater tokens only because time has passed.
local function next_permit_token(s, clock)
  local token, text, after = clock.us, clock.text, s.token and s.token + TOKENS_PER_GRANT
  if after and after > token then token, text = after, micros(after) end
  if not after or token > s.covered then
    local covered, covered_text = token, text
    if after and token - after < FENCE_AHEAD_US then
      covered = math.max(token, clock.us + FENCE_AHEAD_US)
      covered_text = micros(covered)
    end
    local last = math.max(exchange(s.fence.key, covered_text), s.fence.token or 0)
    if not after and last + TOKENS_PER_GRANT > token then
      token = last + TOKENS_PER_GRANT
      text = micros(token)
    end
    s.covered = math.max(covered, token, last)
    -- The first grant within 100 seconds makes the fence last for another day.
    if s.covered ~= covered or math.floor(covered / 1e8) ~= math.floor(last / 1e8) then
      call('SET', s.fence.key, micros(s.covered), 'PX', FENCE_MS)
    end
    note_written(s.fence, s.covered)
  end
  s.token, s.changed = token, true
  return text
end
