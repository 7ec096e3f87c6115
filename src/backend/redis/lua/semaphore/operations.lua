-- The slow paths of semaphores in a batch.

local operations = {
  [ACQUIRE_PERMITS] = acquire_permits,
  [RENEW_PERMITS] = renew_permits,
  [RELEASE_PERMITS] = release_permits,
}
return function(code, key, queue, fence, clock, kind, ...)
  return operations[code](semaphore_at(key, queue, kind, fence, clock), ...)
end
