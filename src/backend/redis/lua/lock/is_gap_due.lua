-- Whether a release should leave a gap (gap.lua). Time is divided into periods of GAP_PERIOD us for each ms of a gap: a
-- gap is due if the lock was granted to this lease before the current period began. Tokens are times, unless the clock
-- has been set back; then there are no gaps until it has caught up.
local function is_gap_due(value, id, gap_ms, clock)
  local granted = tonumber(sub(value or '', #id + 2, #id + 17)) or clock.us
  return clock.us - granted > clock.us % (gap_ms * GAP_PERIOD)
end

