-- The server's time. The clock is read once per call and passed to the functions that need it.

-- Now: in microseconds as text and as a number, and in milliseconds.
local function read_clock()
  local time = call('TIME')
  local text = time[1] .. sub('00000' .. time[2], -6)
  -- Two short numbers are read faster than a long one.
  local us = time[1] * 1e6 + time[2]
  return { text = text, us = us, ms = math.floor(us / 1000) }
end

-- Milliseconds as text. '%.0f' writes all digits of numbers below 2^53, too, but takes twice as long.
local function millis(ms) return string.format('%d%03d', ms / 1000, ms % 1000) end

-- Microseconds, and with them tickets and tokens, as text of 16 digits.
local function micros(us)
  if us < 2e15 then return string.format('%d%06d', us / 1e6, us % 1e6) end
  return string.format('%.0f', us)
end
