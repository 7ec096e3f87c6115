-- What every operation on a semaphore has to know, as one text: to read and to write it costs one command.
--
-- fence  string, in MessagePack: the limit; its reign, when it came into force; its lapse, until when, in ms, it stays in force if
--        nobody holds or waits; how many permits are used; before when, in ms, no holder's lease ends; until when, in ms, holders and
--        holds are kept; until when, in ms, queue and waiters are; the last token; the last ticket. The reign is a text of digits,
--        all else are numbers. What is not known is false.

-- All of it, nil for what is not known. Something else under the key tells nothing.
local function unpack_fence(text)
  local intact, limit, reign, lapse, used, ends, kept, line_kept, token, ticket = pcall(cmsgpack.unpack, text or '')
  if intact and type(ticket) == 'number' and type(reign) ~= 'number' then
    return limit or nil, reign or nil, lapse, used or nil, ends or nil, kept or nil, line_kept or nil, token, ticket
  end
  return nil, nil, 0, nil, nil, nil, nil, 0, 0
end

local function pack_fence(limit, reign, lapse, used, ends, kept, line_kept, token, ticket)
  return cmsgpack.pack(
    limit or false, reign or false, lapse, used or false, ends or false, kept or false, line_kept or false, token, ticket)
end

