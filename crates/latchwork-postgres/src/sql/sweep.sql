  -- Included in the functions: says who shares the key and who waits, and drops what has ended if that matters here: those
  -- that share the key, the row of a_me and the one before it, the first row, the first one in line and the last row.
  -- So each row that has ended is found by the one behind it, and no call reads the whole queue. Needs a_k, a_me, r (the
  -- locked row) and t (read after the lock).
  IF r.closed <= t THEN
    r.closed_by := NULL;
  END IF;
  IF r.claim IS NOT NULL AND r.ends <= t THEN
    r.open := greatest(r.open, r.ends);
    r.claim := NULL; r.holder := NULL;
  END IF;
  members := 0; taken := 0;
  IF r.crowd THEN
    FOR n IN 1..2 LOOP
      SELECT p.* INTO mine FROM @row:a_me@ p WHERE p.k = a_k;
      SELECT m.members, m.taken, m.kind, m.lim, q.pos, CASE WHEN q.take = 2 AND q.mode = 1 THEN q.pos END, z.pos, EXISTS (SELECT FROM @line@ p WHERE p.k = a_k AND p.held IS NULL),
        coalesce(least(m.ends, q.ends, z.ends, mine.ends,
          (SELECT p.ends FROM @line@ p WHERE p.k = a_k ORDER BY p.pos LIMIT 1),
          (SELECT p.ends FROM @line@ p WHERE p.k = a_k AND p.pos < mine.pos ORDER BY p.pos DESC LIMIT 1)) <= t, false)
      INTO members, taken, kind, lim, head, upgrade, last, waits, ended
      FROM (SELECT count(*) AS members, coalesce(sum(s.take), 0) AS taken, min(s.mode) AS kind, max(s.lim) AS lim, min(s.ends) AS ends
          FROM (SELECT * FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL ORDER BY p.held OFFSET 0) s) m
        LEFT JOIN (SELECT p.pos, p.ends, p.take, p.mode FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo ORDER BY p.pos LIMIT 1) q ON true
        LEFT JOIN (SELECT p.pos, p.ends FROM @line@ p WHERE p.k = a_k ORDER BY p.pos DESC LIMIT 1) z ON true;
      IF n = 1 AND last IS NULL AND a_nonce IS NOT NULL THEN
        -- Somebody has emptied the line alone, and who shared a key is not known any more: the nonce counts no longer.
        UPDATE @alive@ SET nonce = gen_random_uuid();
        UPDATE @locks@ l SET crowd = false WHERE l.k IN (
          SELECT c.k FROM @locks@ c WHERE c.crowd AND NOT EXISTS (SELECT FROM @line@ p WHERE p.k = c.k)
          FOR NO KEY UPDATE SKIP LOCKED);
        emptied := true; r.crowd := false; old.crowd := false;
      END IF;
      EXIT WHEN NOT ended;
      news := true;
      WITH ended AS (DELETE FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL AND p.ends <= t RETURNING p.ends)
      SELECT greatest(r.open, max(ended.ends)) INTO r.open FROM ended;
      SELECT min(p.pos) INTO head FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
      WITH ended AS (DELETE FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.ends <= t RETURNING p.*)
      SELECT greatest(r.open, max(ended.ends) FILTER (WHERE ended.fifo AND (head IS NULL OR ended.pos < head)))
      INTO r.open FROM ended;
    END LOOP;
  END IF;
  IF upgrade IS NOT NULL THEN
    -- An upgrade that waits ends with its read hold.
@drop@
  END IF;
