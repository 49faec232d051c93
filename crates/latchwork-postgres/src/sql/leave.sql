-- Ends a claim, held or waiting, and gives the key to the next in line: what kit::record does, under the lock
-- of the key's row. With a_bury above 0 (us) a try of the claim that lands within that time is refused: its
-- connection has ended, and nobody knows when it lands. With a_linger above 0 (us) the key stays closed; -1 ends no claim and opens a closed key, and one
-- below, -1 - n, ends no claim and sets the limit of permits to n: `tell` begins with `limit`, and the kind of lock (-1 if the
-- key is not used), the limit before and the permits held.
CREATE OR REPLACE FUNCTION @leave@(
  a_k bytea, a_name bytea, a_me uuid, a_linger bigint, a_holder bytea, a_nonce uuid, a_bury bigint,
  a_durable text,
  OUT released boolean, OUT now_us bigint, OUT tell text[]
) LANGUAGE plpgsql AS @body@
-- @made@
DECLARE
  r @locks@;
  old @locks@;
  w @line@;
  gone @line@;
  t timestamptz;
  head bigint;
  members bigint;
  taken bigint;
  kind smallint;
  upgrade bigint;
  seen bigint;
  reached bigint;
  others boolean;
  was_held boolean;
  a_serves boolean := true;
  durable boolean;
  heard integer[];
  silent integer[] := '{}';
  news boolean;
  mine @line@;
  lim integer;
  waits boolean;
  ended boolean;
  emptied boolean;
  last bigint;
  ignored text;
  other smallint;
  bound integer;
BEGIN
  tell := '{}'::text[]; released := false;
  IF current_setting('latchwork.leave_@class@', true) IS DISTINCT FROM '@revision@' THEN
    PERFORM @rehearse@('leave');
  END IF;
  IF a_nonce IS NOT NULL THEN
    a_serves := EXISTS (SELECT FROM @alive@ g, @locks@ s WHERE g.nonce = a_nonce AND g.opens <= clock_timestamp()
      AND s.k = '' AND s.claim = a_nonce);
  END IF;
  SELECT * INTO r FROM @locks@ l WHERE l.k = a_k FOR NO KEY UPDATE;
  t := clock_timestamp();
  now_us := (date_part('epoch', t) * 1000000)::bigint;
  IF r.k IS NULL AND a_bury > 0 THEN
    INSERT INTO @locks@ (k, name, token, ends) VALUES (a_k, a_name, coalesce(@floor@, 0), 'epoch') ON CONFLICT DO NOTHING;
    SELECT * INTO r FROM @locks@ l WHERE l.k = a_k FOR NO KEY UPDATE;
    IF NOT FOUND THEN
      RAISE serialization_failure USING MESSAGE = 'the row of the key was removed meanwhile';
    END IF;
    t := clock_timestamp();
  END IF;
  IF r.k IS NULL THEN
    RETURN;
  END IF;
  IF r.claim = a_me AND r.ends > t AND r.crowd AND a_serves AND a_linger = 0 AND a_bury = 0 AND r.closed_by IS NULL
    AND (r.closed IS NULL OR r.closed <= t) THEN
    -- The usual release of a busy key: the first in the queue wants it alone, and its process listens (it holds that
    -- lock on the connection on which it does). One statement in place of those below, which would do the same. What
    -- has ended further behind stays for a later call. No process has the number 0: it listens where this is rehearsed.
    SELECT * INTO w FROM @line@ p WHERE p.k = a_k ORDER BY p.pos LIMIT 1;
    IF w.fifo AND w.held IS NULL AND w.mode < 2 AND w.take <> 2 AND w.ends > t AND w.claim <> a_me AND w.process IS NOT NULL
      AND (w.process = 0 OR NOT pg_try_advisory_xact_lock_shared(@class@, w.process)) THEN
      WITH d AS (
        DELETE FROM @line@ p WHERE p.k = a_k AND p.pos = w.pos
      ), q AS MATERIALIZED (
        SELECT p.claim, p.process FROM @line@ p
        WHERE p.k = a_k AND p.pos > w.pos AND p.held IS NULL AND p.fifo AND p.process IS NOT NULL AND p.ends > t
        ORDER BY p.pos LIMIT 1
      ), u AS (
        UPDATE @locks@ l SET token = greatest(l.token + 1, now_us), claim = w.claim, mode = w.mode, holder = w.holder,
          asked = w.asked, ends = t + w.probation * interval '1 microsecond', open = greatest(l.open, t),
          crowd = EXISTS (SELECT FROM @line@ p WHERE p.k = a_k AND p.pos > w.pos)
        WHERE l.k = a_k RETURNING l.token
      )
      SELECT true, ARRAY[w.process::text, concat_ws(' ', 'g', w.claim, u.token, w.probation, w.word,
          greatest(0, (date_part('epoch', t - w.tried) * 1000000)::bigint))]
        || CASE WHEN q.claim IS NOT NULL THEN ARRAY[q.process::text, concat_ws(' ', 'l', q.claim, w.probation + 1000)] END,
        set_config('synchronous_commit', a_durable, true)
      INTO released, tell, ignored FROM u LEFT JOIN q ON true;
      @notify@
      RETURN;
    END IF;
  END IF;
  old := r;
@sweep@
  IF emptied THEN
    a_serves := false;
  END IF;
  IF a_linger < -1 THEN
    IF r.claim IS NOT NULL THEN
      other := r.mode;
    ELSIF members > 0 THEN
      other := kind; bound := lim;
    ELSIF waits THEN
      SELECT p.mode, p.lim INTO other, bound FROM @line@ p
      WHERE p.k = a_k AND p.mode <> 9 AND p.ends > t AND p.fifo ORDER BY p.pos LIMIT 1;
      IF NOT FOUND THEN
        SELECT p.mode, p.lim INTO other, bound FROM @line@ p
        WHERE p.k = a_k AND p.mode <> 9 AND p.ends > t ORDER BY p.pos LIMIT 1;
      END IF;
    END IF;
    tell := ARRAY['limit', concat_ws(' ', coalesce(other, -1), coalesce(bound, 0), taken)];
    IF other = 3 THEN
      released := true;
      IF bound <> -1 - a_linger THEN
        -- Patience with the first in line is counted from now on.
        r.open := greatest(r.open, t);
      END IF;
      lim := -1 - a_linger;
      UPDATE @line@ p SET lim = -1 - a_linger
      WHERE p.k = a_k AND p.mode = 3 AND (p.held IS NOT NULL OR p.fifo) AND p.lim <> -1 - a_linger;
    END IF;
  ELSIF a_linger < 0 THEN
    IF r.claim IS NULL AND members = 0 AND r.closed > t THEN
      -- Patience with the first in line is counted from now on.
      r.closed := t; r.closed_by := NULL;
      released := true; durable := true;
    END IF;
  ELSIF r.claim = a_me THEN
    r.claim := NULL; r.holder := NULL;
    was_held := true;
  ELSIF mine.pos IS NOT NULL THEN
    DELETE FROM @line@ p WHERE p.k = a_k AND p.pos = mine.pos AND p.mode <> 9 RETURNING p.* INTO gone;
    IF gone.held IS NOT NULL THEN
      was_held := true;
      members := members - 1; taken := taken - gone.take;
      IF members = 0 THEN
        kind := NULL;
      ELSIF gone.mode = 1 THEN
        SELECT min(p.mode) INTO kind FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL;
      END IF;
      IF upgrade IS NOT NULL THEN
@drop@
      END IF;
    ELSIF gone.pos IS NOT NULL THEN
      released := true;
      IF gone.pos = head THEN
        r.open := greatest(r.open, t);
      END IF;
    END IF;
  END IF;
  IF was_held THEN
    released := true; news := true;
    r.open := greatest(r.open, t);
    IF a_linger > 0 AND (r.closed IS NULL OR t + a_linger * interval '1 microsecond' > r.closed) THEN
      r.closed := t + a_linger * interval '1 microsecond'; r.closed_by := a_holder;
      durable := true;
    END IF;
  END IF;
@serve@
  durable := durable OR a_linger < -1 AND released;
  IF a_bury > 0 THEN
    DELETE FROM @line@ p WHERE p.k = a_k AND p.pos = (SELECT x.pos FROM @row:a_me@ x WHERE x.k = a_k);
    INSERT INTO @line@
    SELECT a_k, coalesce(max(p.pos) + 1, 1), a_me, 9, 0, 0, false, NULL, t + a_bury * interval '1 microsecond', t, t,
      a_bury, 0, NULL, NULL, true, '' FROM @line@ p WHERE p.k = a_k;
    r.crowd := true;
  END IF;
@news@
  r.crowd := r.crowd AND EXISTS (SELECT FROM @line@ p WHERE p.k = a_k);
  IF r IS DISTINCT FROM old THEN
    UPDATE @locks@ l SET token = r.token, claim = r.claim, mode = r.mode, ends = r.ends, asked = r.asked,
      crowd = r.crowd, open = r.open, holder = r.holder, closed = r.closed, closed_by = r.closed_by WHERE l.k = a_k;
  END IF;
  ignored := set_config('synchronous_commit', CASE WHEN durable THEN a_durable ELSE 'off' END, true);
END @body@;
