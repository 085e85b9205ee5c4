-- Reserves, renews or settles one request in all of its buckets at once. api/limits/budget.py and counters.py are the
-- same in Python and explain the arithmetic; tests compare the two. api/limits/script.py puts the constants before the
-- first line.
--
-- KEYS: the open reservations of the tenant, a sorted set by their ends; then a hash for each scope, with a field for
-- each limit per minute and each budget. Further names are made from these: a reservation is `<open>:<id>`, and a sorted
-- set `<scope>:open` has the open requests of a scope. The sorted sets `settled` and `end_users` have the requests that are
-- settled, and the end users that have counters, by when each may be forgotten. All have the tenant as hash tag, and are on
-- one node.
-- ARGV: the operation, the id, its lifetime, when it was taken and closed; requests, tokens and cost as reserved, then
-- the actual ones; whether there is a ledger; and for each bucket its scope, kind, capacity and seed ('' if unknown).

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local open, id, lifetime = KEYS[1], ARGV[2], tonumber(ARGV[3])
local prefix = string.sub(open, 1, -5) -- without its last word, `open`
local settled_ids, end_users = prefix .. 'settled', prefix .. 'end_users'
local FIRST_BUCKET, BUCKET_ARGUMENTS = 13, 4
local fields = {}

local function text_of(number) return string.format('%.0f', number) end

local function numbers_in(text)
  local numbers = {}
  for number in string.gmatch(text or '', '%d+') do numbers[#numbers + 1] = tonumber(number) end
  return numbers
end

local function amounts(requests, tokens, cost)
  return {r = requests, t = tokens, td = tokens, tm = tokens, cd = cost, cm = cost}
end

local function is_rate(kind) return kind == 'r' or kind == 't' end

local function is_monthly(kind) return kind == 'tm' or kind == 'cm' end

-- Days and months

local function month_of(day)
  day = day + 719468
  local era = math.floor(day / 146097)
  local of_era = day - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  return (era * 400 + year) * 12 + math.floor((5 * of_year + 2) / 153) + 2
end

local function first_day_of(month)
  local year, of_year = math.floor((month - 2) / 12), (month - 2) % 12
  local era, of_era = math.floor(year / 400), year % 400
  local day = math.floor((153 * of_year + 2) / 5) + of_era * 365 + math.floor(of_era / 4) - math.floor(of_era / 100)
  return era * 146097 + day - 719468
end

local function window_of(kind, at)
  local day = math.floor(at / DAY_MS)
  return is_monthly(kind) and month_of(day) or day
end

local today = math.floor(now / DAY_MS)
local this_month = month_of(today)
local day_ends_in, month_ends_in = (today + 1) * DAY_MS - now, first_day_of(this_month + 1) * DAY_MS - now

local function window_ends_in(kind) return is_monthly(kind) and month_ends_in or day_ends_in end

-- Limits per minute: numbers 1 to 3 are capacity, debt and time, then two for each mark

local function rate_of(bucket)
  local place = bucket.name .. ' ' .. bucket.kind
  local rate = fields[place]
  if not rate then
    local numbers = numbers_in(redis.call('HGET', bucket.name, bucket.kind))
    rate = {bucket = bucket, marks = {}}
    rate.capacity, rate.debt, rate.at = numbers[1] or bucket.capacity, numbers[2] or 0, numbers[3] or now
    for i = 4, #numbers, 2 do rate.marks[#rate.marks + 1] = {numbers[i], numbers[i + 1]} end
    rate.debt = math.max(0, rate.debt - rate.capacity * math.max(0, now - rate.at))
    rate.at = math.max(rate.at, now)
    fields[place] = rate
  end
  return rate
end

local function set_marks(rate, low_of)
  local marks = {}
  for _, mark in ipairs(rate.marks) do
    local low = low_of(mark[2])
    if #marks == 0 or low > marks[#marks][2] then marks[#marks + 1] = {mark[1], low} end
  end
  rate.marks = marks
end

local function set_low_point(rate)
  set_marks(rate, function(low) return math.min(low, rate.debt) end)
end

local function charge(rate, units)
  if units <= 0 then return end
  set_low_point(rate)
  rate.debt = math.min(MOST_COUNTED, rate.debt + units)
  local marks = rate.marks
  if #marks > 0 and marks[#marks][1] == rate.at then marks[#marks] = nil end
  marks[#marks + 1] = {rate.at, rate.debt}
  if #marks > MOST_MARKS then
    local least = 2
    for i = 3, #marks do
      if marks[i][2] - marks[i - 1][2] < marks[least][2] - marks[least - 1][2] then least = i end
    end
    table.remove(marks, least)
  end
end

local function give_back(rate, units, taken_at)
  set_low_point(rate)
  local found
  for _, mark in ipairs(rate.marks) do
    if mark[1] <= taken_at then found = mark[2] end
  end
  if units <= 0 or not found then return end
  local credit = math.min(units, found)
  rate.debt = rate.debt - credit
  set_marks(rate, function(low) return low >= found and low - credit or math.min(low, found - credit) end)
end

-- Budgets: the number of the day or month, what is used, when the ledger said it, and the part of what is used that open
-- requests have reserved

local function window_at(bucket)
  local place = bucket.name .. ' ' .. bucket.kind
  local window = fields[place]
  if not window then
    local numbers = numbers_in(redis.call('HGET', bucket.name, bucket.kind))
    local current = is_monthly(bucket.kind) and this_month or today
    window = {bucket = bucket, id = numbers[1] or current, used = numbers[2] or 0, seeded_at = numbers[3] or 0}
    window.reserved = numbers[4] or 0
    if current > window.id then window.id, window.used, window.reserved = current, 0, 0 end
    fields[place] = window
  end
  return window
end

local function add(window, amount, reserved)
  window.used = math.min(MOST_COUNTED, math.max(0, window.used + amount))
  window.reserved = math.min(MOST_COUNTED, math.max(0, window.reserved + reserved))
end

-- Reservations

local function save()
  local values, lasting = {}, {}
  for _, field in pairs(fields) do
    local name, kind = field.bucket.name, field.bucket.kind
    local lasts, text
    if is_rate(kind) then
      local parts = {text_of(field.capacity), text_of(field.debt), text_of(field.at)}
      for _, mark in ipairs(field.marks) do
        parts[#parts + 1], parts[#parts + 2] = text_of(mark[1]), text_of(mark[2])
      end
      text, lasts = table.concat(parts, ' '), MINUTE_MS + math.ceil(field.debt / field.capacity)
    else
      text = table.concat(
        {text_of(field.id), text_of(field.used), text_of(field.seeded_at), text_of(field.reserved)}, ' ')
      lasts = window_ends_in(kind) + DAY_MS
    end
    local own = values[name] or {}
    own[#own + 1], own[#own + 2] = kind, text
    values[name], lasting[name] = own, math.max(lasting[name] or 0, lasts)
  end
  for name, own in pairs(values) do
    redis.call('HSET', name, unpack(own))
    if redis.call('PTTL', name) < lasting[name] then redis.call('PEXPIRE', name, text_of(lasting[name])) end
  end
end

-- Whether an end user has counters of its own, which it keeps until `ends_at` at least
local function has_counters(end_user, ends_at)
  if not redis.call('ZSCORE', end_users, end_user) and redis.call('ZCARD', end_users) >= MOST_END_USERS then
    redis.call('ZREMRANGEBYSCORE', end_users, '-inf', text_of(now))
    if redis.call('ZCARD', end_users) >= MOST_END_USERS then return false end
  end
  redis.call('ZADD', end_users, 'GT', text_of(ends_at), end_user)
  if redis.call('PTTL', end_users) < ends_at - now then redis.call('PEXPIRE', end_users, text_of(ends_at - now)) end
  return true
end

-- Gives the buckets the names under which they count: of the end users beyond the most, all count as one
local function counted(buckets)
  local ends = {}
  for _, bucket in ipairs(buckets) do
    if bucket.kind ~= 'c' and string.find(bucket.name, ':end_user:', 1, true) then
      local lasts = is_rate(bucket.kind) and 2 * MINUTE_MS or window_ends_in(bucket.kind) + DAY_MS
      ends[bucket.name] = math.max(ends[bucket.name] or 0, now + lasts)
    end
  end
  for name, ends_at in pairs(ends) do
    if not has_counters(string.match(name, ':end_user:(.*)$'), ends_at) then
      for _, bucket in ipairs(buckets) do
        if bucket.name == name then bucket.name = prefix .. 'other_end_users' end
      end
    end
  end
  return buckets
end

local function buckets_in_arguments()
  local buckets = {}
  for i = FIRST_BUCKET, #ARGV, BUCKET_ARGUMENTS do
    buckets[#buckets + 1] = {
      name = KEYS[tonumber(ARGV[i])], kind = ARGV[i + 1], capacity = tonumber(ARGV[i + 2]), seed = tonumber(ARGV[i + 3])
    }
  end
  return counted(buckets)
end

local function amounts_in_arguments(first)
  return amounts(tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]))
end

local function is_settled(its_id) return tonumber(redis.call('ZSCORE', settled_ids, its_id) or 0) >= now end

local function note_settled(its_id)
  redis.call('ZADD', settled_ids, text_of(now + 2 * KEPT_MS), its_id)
  redis.call('ZREMRANGEBYSCORE', settled_ids, '-inf', '(' .. text_of(now))
  redis.call('ZREMRANGEBYRANK', settled_ids, 0, -1 - MOST_SETTLED)
  redis.call('PEXPIRE', settled_ids, text_of(2 * KEPT_MS))
end

-- A reservation, or nil
local function found(its_id)
  local text = redis.call('GET', open .. ':' .. its_id)
  if not text then return nil end
  local head = numbers_in(string.match(text, '^[^|]+'))
  local record = {taken_at = head[1], reserved = amounts(head[2], head[3], head[4]), buckets = {}}
  for name, kind, capacity in string.gmatch(text, '|(%S+) (%a+) (%d+)') do
    -- A replica of another version may know further limits
    if kind == 'c' or record.reserved[kind] then
      record.buckets[#record.buckets + 1] = {name = name, kind = kind, capacity = tonumber(capacity)}
    end
  end
  return record
end

local function settle_record(its_id, record, actual, closed_at)
  for _, bucket in ipairs(record.buckets) do
    local kind = bucket.kind
    if kind == 'c' then
      redis.call('ZREM', bucket.name .. ':open', its_id)
    elseif is_rate(kind) then
      local rate = rate_of(bucket)
      charge(rate, (actual[kind] - record.reserved[kind]) * MINUTE_MS)
      give_back(rate, (record.reserved[kind] - actual[kind]) * MINUTE_MS, record.taken_at)
    else
      local window = window_at(bucket)
      if window.id == window_of(kind, record.taken_at) then
        if record.taken_at >= window.seeded_at then
          add(window, actual[kind] - record.reserved[kind], -record.reserved[kind])
        elseif closed_at > window.seeded_at then
          add(window, actual[kind], 0)
        end
      end
    end
  end
end

local function sweep()
  for _, lost in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', text_of(now), 'LIMIT', 0, SWEPT_AT_ONCE)) do
    redis.call('ZREM', open, lost)
    local record = found(lost)
    if record then
      redis.call('DEL', open .. ':' .. lost)
      settle_record(lost, record, amounts(0, 0, 0), 0)
    end
  end
end

local function enter(buckets)
  redis.call('ZADD', open, text_of(now + lifetime), id)
  redis.call('PEXPIRE', open, text_of(OPEN_KEPT_MS))
  for _, bucket in ipairs(buckets) do
    if bucket.kind == 'c' then
      redis.call('ZADD', bucket.name .. ':open', text_of(now + lifetime), id)
      redis.call('PEXPIRE', bucket.name .. ':open', text_of(lifetime))
    end
  end
end

local function take(buckets)
  local parts = {text_of(now) .. ' ' .. ARGV[6] .. ' ' .. ARGV[7] .. ' ' .. ARGV[8]}
  local reserved = amounts_in_arguments(6)
  for _, bucket in ipairs(buckets) do
    parts[#parts + 1] = bucket.name .. ' ' .. bucket.kind .. ' ' .. text_of(bucket.capacity)
    if is_rate(bucket.kind) then
      charge(rate_of(bucket), reserved[bucket.kind] * MINUTE_MS)
    elseif bucket.kind ~= 'c' then
      add(window_at(bucket), reserved[bucket.kind], reserved[bucket.kind])
    end
  end
  redis.call('SET', open .. ':' .. id, table.concat(parts, '|'), 'PX', text_of(OPEN_KEPT_MS))
  enter(buckets)
end

local function num_open(bucket)
  redis.call('ZREMRANGEBYSCORE', bucket.name .. ':open', '-inf', text_of(now))
  return redis.call('ZCARD', bucket.name .. ':open')
end

-- The time until a bucket has room, and the order of refusals: 0 is none
local function wait_and_rank(bucket, amount)
  if bucket.kind == 'c' then
    local wait = num_open(bucket) < bucket.capacity and 0 or BUSY_MS
    return wait, wait
  elseif is_rate(bucket.kind) then
    local rate = rate_of(bucket)
    local missing = rate.debt + (amount - rate.capacity) * MINUTE_MS
    if amount > bucket.capacity then return 0, 1e13 end
    local wait = missing <= 0 and 0 or math.ceil(missing / rate.capacity)
    return wait, wait
  end
  local window, wait = window_at(bucket), window_ends_in(bucket.kind)
  if bucket.capacity > 0 and window.used - window.reserved + amount <= bucket.capacity then
    if window.used + amount <= bucket.capacity then return 0, 0 end
    wait = math.min(BUSY_MS, wait)
  end
  return amount > bucket.capacity and 0 or wait, wait > BUSY_MS and wait + 1e12 or wait
end

local function append_rooms(answer, buckets)
  for _, bucket in ipairs(buckets) do
    local remaining, reset = 0, 0
    if bucket.kind == 'c' then
      remaining = bucket.capacity - num_open(bucket)
    elseif is_rate(bucket.kind) then
      local rate = rate_of(bucket)
      remaining = math.floor(math.max(0, rate.capacity * MINUTE_MS - rate.debt) / MINUTE_MS)
      reset = math.ceil(rate.debt / rate.capacity)
    else
      remaining, reset = bucket.capacity - window_at(bucket).used, window_ends_in(bucket.kind)
    end
    answer[#answer + 1], answer[#answer + 2] = math.max(0, remaining), reset
  end
  return answer
end

-- The places of budgets, from 0 on, that neither this Redis nor the request knows; and the same from 1 on, as a set
local function unseeded(buckets)
  local missing, is_missing = {}, {}
  for i, bucket in ipairs(buckets) do
    if bucket.kind ~= 'c' and not is_rate(bucket.kind) then
      local window = window_at(bucket)
      if window.seeded_at == 0 then
        if bucket.seed then
          window.used, window.reserved, window.seeded_at = math.min(MOST_COUNTED, bucket.seed), 0, now
        else
          missing[#missing + 1], is_missing[i] = i - 1, true
        end
      end
    end
  end
  return missing, is_missing
end

local function reserve()
  local buckets, reserved = buckets_in_arguments(), amounts_in_arguments(6)
  if is_settled(id) then return append_rooms({0, now, 0, 0}, buckets) end
  if redis.call('EXISTS', open .. ':' .. id) == 1 then return append_rooms({1, now}, buckets) end
  local missing, is_missing = {}, {}
  if ARGV[12] == '1' then missing, is_missing = unseeded(buckets) end
  local binding, binding_wait, binding_rank = nil, 0, 0
  for _, bucket in ipairs(buckets) do
    if is_rate(bucket.kind) then rate_of(bucket).capacity = bucket.capacity end
  end
  for i, bucket in ipairs(buckets) do
    if not is_missing[i] then
      local wait, rank = wait_and_rank(bucket, reserved[bucket.kind])
      if rank > binding_rank then binding, binding_wait, binding_rank = i, wait, rank end
    end
  end
  if binding then return append_rooms({0, now, binding - 1, binding_wait}, buckets) end
  if #missing > 0 then return {2, now, unpack(missing)} end
  take(buckets)
  return append_rooms({1, now}, buckets)
end

local function renew()
  if is_settled(id) then return {1, now} end
  local known = found(id)
  if not known then
    local lasting = {}
    for _, bucket in ipairs(buckets_in_arguments()) do
      if not is_rate(bucket.kind) then lasting[#lasting + 1] = bucket end
    end
    take(lasting)
  else
    enter(known.buckets)
  end
  return {1, now}
end

local function settle()
  if is_settled(id) then return {0, now} end
  local known, actual, closed_at = found(id), amounts_in_arguments(9), tonumber(ARGV[5])
  if not known and now - closed_at > KEPT_MS then return {0, now} end
  note_settled(id)
  redis.call('DEL', open .. ':' .. id)
  redis.call('ZREM', open, id)
  if known then
    settle_record(id, known, actual, closed_at)
    return {1, now}
  end
  for _, bucket in ipairs(buckets_in_arguments()) do
    if is_rate(bucket.kind) then
      local rate = rate_of(bucket)
      charge(rate, actual[bucket.kind] * MINUTE_MS - rate.capacity * math.max(0, now - closed_at))
    elseif bucket.kind ~= 'c' then
      local window = window_at(bucket)
      if window.id == window_of(bucket.kind, tonumber(ARGV[4])) and closed_at > window.seeded_at then
        add(window, actual[bucket.kind], 0)
      end
    end
  end
  return {1, now}
end

sweep()
local operations = {reserve = reserve, renew = renew, settle = settle}
local answer = operations[ARGV[1]]()
save()
return answer
