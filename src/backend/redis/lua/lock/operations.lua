-- The slow paths of locks in a batch.

local operations = {
  [ACQUIRE] = acquire_sole,
  [RELEASE] = release,
  [RELEASE_WITH_GAPS] = release,
  [ACQUIRE_OWNED] = acquire_owned,
  [ACQUIRE_FROM] = acquire_from,
  [SETTLE] = settle,
  [RENEW_OWNED] = renew_owned,
  [RELEASE_OWNED] = release_owned,
}
return function(code, key, queue, fence, clock, ...)
  return operations[code](lock_at(key, queue, fence, clock), ...)
end
