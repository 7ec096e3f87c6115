-- A request for a lock in a call of its own.
--
-- First the fast path of acquire.lua: the lock is free and has no waiters. The same as acquire_fast with next_token, in
-- one piece, because functions and tables cost time on every call; and comparing texts, because reading a number of 16
-- digits takes long, and writing one longer. What is unusual about the fence comes second: it has expired; it should
-- last for another day, as after the first grant within 100 seconds; its token is not less than the time by a grant's
-- tokens; or another token is proposed.

local lock = KEYS[1]
if call('EXISTS', lock, KEYS[3] or '{' .. lock .. '}:queue') == 0 then
  local fence, time, owner, proposed = KEYS[2] or DEFAULT_FENCE, call('TIME'), ARGV[5], ARGV[6]
  local second, us = time[1], time[2]
  if #us < 6 then us = sub('00000' .. us, -6) end
  local text = second .. us
  local last = proposed and call('GET', fence) or call('SET', fence, text, 'KEEPTTL', 'GET')
  if proposed or not last or #last ~= 16 or last >= text or (last < second and sub(last, 1, 8) ~= sub(second, 1, 8))
    or (us - sub(last, 11)) % 1e6 < TOKENS_PER_GRANT then
    last = math.floor(tonumber(last or 0) or 0)
    if not (last < FENCE_LIMIT) then last = 0 end
    local now = tonumber(text)
    local least = math.min(tonumber(proposed or 0), math.max(last, now) + PROPOSED_AHEAD_US)
    local token = math.max(last + TOKENS_PER_GRANT, now, least)
    if token ~= now then text = string.format('%.0f', token) end
    call('SET', fence, text, 'PX', FENCE_MS)
  end
  local value = ARGV[1] .. ' ' .. text .. (owner and owner ~= '' and '/' .. owner or '')
  call('PSETEX', lock, ARGV[2] or DEFAULT_TTL_MS, value)
  return text
end

OTHERWISE

local clock, fence, queue = prepare()
if #ARGV <= 2 then
  local done, answer =
    pcall(join_fast, lock, queue, sub(queue, 1, -6) .. 'waiters', clock, ARGV[1], ARGV[2] or DEFAULT_TTL_MS)
  if done and answer then return answer end
end

OTHERWISE

return acquire(lock_at(lock, queue, fence, clock), unpack(ARGV))
