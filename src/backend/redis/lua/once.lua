-- The end of a script with a single operation: carries it out, and closes the fence even if it fails.

local function once(fence, operation, ...)
  local done, answer = pcall(operation, ...)
  close_fence(fence)
  if not done then
    error(answer, 0)
  end
  return answer
end

