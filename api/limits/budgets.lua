-- The budgets of one tenant, as the ledger should have them. api/limits/redis_budgets.py puts the constants before the first
-- line.
--
-- KEYS: the open reservations of the tenant (reserve.lua), then hashes of scopes.
-- ARGV: the operation. BUDGETS says of each kind what it counts, and which argument of `settled` is the start of its day
-- or month.
-- `settled` answers with {scope's place, kind, number of the day or month, what is settled} for each budget: what is used,
-- without what running requests have reserved. It answers with nothing if more than MOST_OPEN requests run.
-- `add` has one hash, a kind, the number of its day or month, and what is added to the budget in one step with what
-- requests add meanwhile.

local function text_of(number) return string.format('%.0f', number) end

local function window_in(name, kind)
  local id, used, seeded_at, rest = string.match(redis.call('HGET', name, kind) or '', '(%d+) (%d+) (%d+)(.*)')
  return tonumber(id), tonumber(used), tonumber(seeded_at), rest
end

local function add()
  local name, kind, id, amount = KEYS[2], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local its_id, used, seeded_at, rest = window_in(name, kind)
  if its_id ~= id then return 0 end
  used = math.min(MOST_COUNTED, math.max(0, used + amount))
  redis.call('HSET', name, kind, text_of(id) .. ' ' .. text_of(used) .. ' ' .. text_of(seeded_at) .. rest)
  return 1
end

-- By name and kind of the budget, a list of {when it was reserved, what was reserved}
local function reserved()
  local found = {}
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local text = redis.call('GET', KEYS[1] .. ':' .. id) or ''
    local taken_at, requests, tokens, cost = string.match(text, '^(%d+) (%d+) (%d+) (%d+)')
    local amounts = {REQUESTS = requests, TOKENS = tokens, COST = cost}
    for name, kind in string.gmatch(text, '|(%S+) (%a+) ') do
      if BUDGETS[kind] then
        local place = name .. ' ' .. kind
        found[place] = found[place] or {}
        table.insert(found[place], {tonumber(taken_at), tonumber(amounts[BUDGETS[kind].measure])})
      end
    end
  end
  return found
end

local function settled()
  if redis.call('ZCARD', KEYS[1]) > MOST_OPEN then return {} end
  local open, answer = reserved(), {}
  for i = 2, #KEYS do
    for kind, budget in pairs(BUDGETS) do
      local id, used, seeded_at = window_in(KEYS[i], kind)
      if id then
        for _, one in ipairs(open[KEYS[i] .. ' ' .. kind] or {}) do
          -- What was taken in another day or month, or before the ledger was asked, is not in the budget
          if one[1] >= tonumber(ARGV[budget.start]) and one[1] >= seeded_at then
            used = used - one[2]
          end
        end
        answer[#answer + 1] = {i - 1, kind, id, math.max(0, used)}
      end
    end
  end
  return answer
end

return ARGV[1] == 'add' and add() or settled()
