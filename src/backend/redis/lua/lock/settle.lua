-- Gives a lease that is held another token, on which the servers of a quorum have agreed.
--
-- ARGV[1]  lease id
-- ARGV[2]  the token, 16 digits
--
-- Returns  SETTLED if the lease is held, and from now on under that token, or already under a greater one of its owner;
--          NOT_HELD if not
--
-- Idempotent. The fence is never lowered: a later grant has a greater token than both. Nor is the token that all holds
-- of an owner share: another client may have handed it out already. That of a mutex concerns only its one lease.

local function settle(r, id, token)
  local lead, held, owner, several = expire_holds(r)
  if not lead or (lead ~= id and not (several and call('ZSCORE', r.holds, id))) then return NOT_HELD end
  if held == token or (owner and tonumber(held) > tonumber(token)) then return SETTLED end
  -- First: a server that refuses to write the fence must not confirm the token.
  if last_token(r.fence) < tonumber(token) then
    call('SET', r.fence.key, token, 'PX', FENCE_MS)
    note_written(r.fence, tonumber(token))
  end
  local rest = sub(call('GET', r.key), #lead + #held + 2)
  call('SET', r.key, lead .. ' ' .. token .. rest, 'KEEPTTL')
  return SETTLED
end
