-- What a turn was reminded of, and summaries of what came before one.

-- Items of its conversation, by relevance when it was asked: told again whenever it is, so that its prompt is the same
ALTER TABLE responses ADD COLUMN memory text[];

-- A compaction that Baton made: the last item that it stands for, and how many there are up to that one. One that has
-- no such number any more stands for something that was deleted
ALTER TABLE items
  ADD COLUMN covers_through text,
  ADD COLUMN covers int,
  ADD CHECK ((covers_through IS NULL) = (covers IS NULL));
