-- Carries out many operations in one call, in the order given.
--
-- KEYS  those of the operations, one after another
-- ARGV  for each operation three characters, its letter, how many keys and how many arguments it has, then its arguments
--
-- Returns  the operations' answers in the same order; {'!', text} for one that failed
--
-- An operation that fails, because something else stands under its key, say, harms no other one.

local answers = {}
local key, arg, last_arg = 1, 1, #ARGV
while arg <= last_arg do
  local letter, keys, args = string.byte(ARGV[arg], 1, 3)
  keys, args = keys - 48, args - 48
  local ok, answer = pcall(
    OPERATIONS[string.char(letter)],
    { unpack(KEYS, key, key + keys - 1) },
    { unpack(ARGV, arg + 1, arg + args) }
  )
  if not ok then
    answer = { '!', type(answer) == 'table' and answer.err or tostring(answer) }
  end
  table.insert(answers, answer)
  key, arg = key + keys, arg + args + 1
end
return answers
