-- The memories of turns, and the summaries of conversations.

-- The items of its conversation that a turn was reminded of. Later prompts repeat them, so that their prefix is the same
ALTER TABLE responses ADD COLUMN memory text[];

-- Of a compaction that Baton made: the last item that it stands for, and the number of items up to that one. If the
-- conversation has another number of items up to there, one of them was deleted
ALTER TABLE items
  ADD COLUMN covers_through text,
  ADD COLUMN covers int,
  ADD CHECK ((covers_through IS NULL) = (covers IS NULL));
