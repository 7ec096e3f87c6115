-- Returns the texts under many keys; nil for those that are not there, or are no text. Changes nothing.
--
-- KEYS  of labels or notes (descriptions.rs)

local texts = {}
for i, key in ipairs(KEYS) do
  local text = redis.pcall('GET', key)
  texts[i] = type(text) == 'string' and text
end
return texts
