-- Grants a claim, or says what is in its way and keeps its place: what `Record::try_acquire` of kit::record does, under the
-- lock of the key's row. The blocks below have the names of the functions there, and their order. `what` is g granted, h held, q queued, c closed, m mismatch (with the kind of lock in `given`
-- and its limit in `retry`), x quarantine, e ended before, n the nonce is not the guard's.
--
-- A reader or writer with a_take 2 replaces a hold: its holder ends with the id of that one. While both are held they
-- are in the line, the writer too. A row of an upgrade that waits is the first one of the line. `what` is then also l
-- the hold is gone, u another upgrade waits, and b it has the mode in `given`, beside which this one cannot be.
-- A negative a_lim is the limit of a claim that brings it to a key with another one; with a negative a_take the limit
-- of the key counts.
--
-- It waits for the row of the key for a shorter time than a renewal and a release do, so a crowd of tries gives way to
-- them: the client takes the key for blocked then.
CREATE OR REPLACE FUNCTION @stand@(
  a_k bytea, a_name bytea, a_me uuid, a_mode smallint, a_take integer, a_lim integer, a_fifo boolean,
  a_waits boolean, a_ttl bigint, a_floor bigint, a_holder bytea, a_probation bigint, a_word uuid,
  a_process integer, a_nonce uuid, a_durable text,
  OUT what text, OUT given bigint, OUT retry bigint, OUT ahead integer, OUT whom bytea, OUT now_us bigint,
  OUT tell text[]
) LANGUAGE plpgsql AS @body@
-- @made@
DECLARE
  r @locks@;
  old @locks@;
  w @line@;
  other smallint;
  bound integer;
  mine @line@;
  t timestamptz;
  opens timestamptz;
  since timestamptz;
  first_end timestamptz;
  head bigint;
  members bigint;
  taken bigint;
  kind smallint;
  upgrade bigint;
  beside uuid;
  was smallint;
  refused text;
  seen bigint;
  reached bigint;
  others boolean;
  way bigint;
  fits boolean;
  others_fit boolean;
  a_serves boolean;
  durable boolean;
  heard integer[];
  silent integer[] := '{}';
  news boolean;
  lim integer;
  waits boolean;
  ended boolean;
  emptied boolean;
  last bigint;
  upto bigint;
  ignored text;
  brings boolean := a_lim < 0;
  follows boolean := a_take < 0;
BEGIN
  a_lim := abs(a_lim); a_take := abs(a_take);
  tell := '{}'::text[];
  IF current_setting('latchwork.stand_@class@', true) IS DISTINCT FROM '@revision@' THEN
    PERFORM @rehearse@('stand');
  END IF;
  PERFORM set_config('lock_timeout', '@brief@', true);
  -- Block `guard`, which no record has: the nonce, and until when the store is in quarantine.
  IF a_nonce IS NOT NULL THEN
    SELECT g.opens INTO opens FROM @alive@ g, @locks@ s WHERE g.nonce = a_nonce AND s.k = '' AND s.claim = a_nonce;
    IF NOT FOUND THEN
      what := 'n';
      RETURN;
    END IF;
  END IF;
  IF a_take = 2 AND a_mode < 3 THEN
    beside := @beside:a_holder@;
  END IF;
  -- Block `look`, a shortcut.
  IF NOT a_waits AND beside IS NULL THEN
    -- A look that leaves nothing need not lock the row, if one claim holds the key and nobody waits.
    SELECT * INTO r FROM @locks@ l WHERE l.k = a_k;
    t := clock_timestamp();
    IF FOUND AND NOT r.crowd AND r.claim <> a_me AND r.ends > t AND (r.closed IS NULL OR r.closed <= t)
      AND a_mode IN (0, 1, 2) AND (a_mode = 0) = (r.mode = 0) AND (opens IS NULL OR opens <= t) THEN
      what := 'h'; given := 0; ahead := 0; whom := r.holder;
      retry := (date_part('epoch', r.ends - t) * 1000000)::bigint;
      now_us := (date_part('epoch', t) * 1000000)::bigint;
      RETURN;
    END IF;
  END IF;
  -- Block `row`: the lock of the key's row.
  SELECT * INTO r FROM @locks@ l WHERE l.k = a_k FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    INSERT INTO @locks@ (k, name, token, ends) VALUES (a_k, a_name, coalesce(@floor@, 0), 'epoch') ON CONFLICT DO NOTHING;
    SELECT * INTO r FROM @locks@ l WHERE l.k = a_k FOR NO KEY UPDATE;
    IF NOT FOUND THEN
      -- Somebody had made the row, and somebody has removed it: a grant would be in no row.
      RAISE serialization_failure USING MESSAGE = 'the row of the key was removed meanwhile';
    END IF;
    PERFORM @recheck@(a_nonce);
  END IF;
  t := clock_timestamp();
  now_us := (date_part('epoch', t) * 1000000)::bigint;
  -- Block `join`, a shortcut.
  IF r.crowd AND r.claim <> a_me AND r.ends > t AND r.mode = a_mode AND a_lim = 0 AND a_fifo AND a_waits AND beside IS NULL
    AND r.closed_by IS NULL AND (r.closed IS NULL OR r.closed <= t) AND (opens IS NULL OR opens <= t) THEN
    -- The usual try for a busy key: one claim holds it alone, and this one goes to the end of the queue. One statement in
    -- place of those below, which would do the same.
    WITH c AS MATERIALIZED (
      SELECT z.pos AS last, CASE WHEN q.count < 100 THEN q.count ELSE z.pos + 1 - q.first END AS way
      FROM (SELECT count(*), min(f.pos) AS first FROM (
          SELECT p.pos FROM @line@ p WHERE p.k = a_k AND p.fifo AND p.ends > t ORDER BY p.pos LIMIT 100) f) q,
        (SELECT p.fifo, p.ends FROM @line@ p WHERE p.k = a_k ORDER BY p.pos LIMIT 1) a,
        (SELECT p.pos, p.ends FROM @line@ p WHERE p.k = a_k ORDER BY p.pos DESC LIMIT 1) z
      WHERE a.fifo AND a.ends > t AND z.ends > t AND NOT EXISTS (SELECT FROM @row:a_me@ p WHERE p.k = a_k)
    ), i AS (
      INSERT INTO @line@
      SELECT a_k, c.last + 1, a_me, a_mode, a_take, a_lim, a_fifo, NULL, t + a_ttl * interval '1 microsecond', t, t,
        a_ttl, a_probation, a_word, a_process, false, a_holder FROM c
    )
    SELECT 'h', 0, (date_part('epoch', r.ends - t) * 1000000)::bigint + c.way * @patience_us@, c.way, r.holder,
      set_config('synchronous_commit', 'off', true)
    INTO what, given, retry, ahead, whom, ignored FROM c;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  -- Block `sweep`: drops what has ended.
  old := r; a_serves := true;
@sweep@
  IF emptied THEN
    what := 'n';
    RETURN;
  END IF;
  IF mine.mode = 9 THEN
    what := 'e'; given := 0;
    RETURN;
  END IF;
  -- Block `judge`, first part: what is held already keeps its token and starts its ttl anew.
  IF r.claim = a_me THEN
    r.ends := t + a_ttl * interval '1 microsecond';
    what := 'g'; given := r.token;
  ELSIF mine.held IS NOT NULL THEN
    UPDATE @line@ p SET ends = t + a_ttl * interval '1 microsecond' WHERE p.k = a_k AND p.pos = mine.pos;
    what := 'g'; given := mine.held;
  END IF;
  IF what IS NULL THEN
    -- Block `check_shape`: one kind of lock and one limit for a key.
    IF r.claim IS NOT NULL THEN
      other := r.mode; bound := 0;
    ELSIF members > 0 THEN
      other := kind; bound := lim;
    ELSIF waits THEN
      SELECT p.mode, p.lim INTO other, bound FROM @line@ p
      WHERE p.k = a_k AND p.claim <> a_me AND p.mode <> 9 AND p.ends > t AND p.fifo ORDER BY p.pos LIMIT 1;
      IF NOT FOUND THEN
        SELECT p.mode, p.lim INTO other, bound FROM @line@ p
        WHERE p.k = a_k AND p.claim <> a_me AND p.mode <> 9 AND p.ends > t ORDER BY p.pos LIMIT 1;
      END IF;
    END IF;
    -- Block `judged_mode`: its own limit, that of the others, or that of its place.
    IF a_mode = 3 AND NOT brings AND (follows OR mine.fifo) THEN
      a_lim := coalesce(CASE WHEN mine.fifo THEN mine.lim END, CASE WHEN follows AND other = 3 THEN bound END, a_lim);
    END IF;
    IF a_mode = 3 AND other = 3 AND (brings OR follows OR mine.fifo) THEN
      bound := a_lim;
    END IF;
    IF bound <> a_lim OR other <> a_mode AND (other NOT IN (1, 2) OR a_mode NOT IN (1, 2)) THEN
      what := 'm'; given := other; retry := bound;
    END IF;
  END IF;
  IF what IS NULL AND beside IS NOT NULL THEN
    -- Block `refusal`.
    was := CASE WHEN r.claim = beside THEN r.mode
      ELSE (SELECT p.mode FROM @row:beside@ p WHERE p.k = a_k AND p.held IS NOT NULL) END;
    IF was IS NULL THEN
      refused := 'l';
    ELSIF was + a_mode <> 3 THEN
      what := 'b'; given := was;
    ELSIF a_mode = 1 AND upgrade IS DISTINCT FROM mine.pos THEN
      SELECT p.holder INTO whom FROM @line@ p WHERE p.k = a_k AND p.pos = upgrade;
      IF FOUND THEN
        refused := 'u';
      END IF;
    END IF;
  END IF;
  IF what IS NULL THEN
    IF last IS NULL THEN
      -- Somebody may have changed the tables by hand: a row that `crowd` does not tell of keeps its place.
      SELECT max(p.pos) INTO last FROM @line@ p WHERE p.k = a_k;
      IF last IS NOT NULL THEN
        DELETE FROM @line@ p WHERE p.k = a_k AND p.claim = a_me;
      END IF;
    END IF;
    -- Block `in_the_way`: whether it fits beside the members, and the places before this one that must be granted first.
    fits := CASE WHEN beside IS NULL THEN @fits:a_mode,a_take,a_lim@ ELSE a_mode = 2 OR r.claim IS NULL AND members = 1 END;
    way := 0; others_fit := true;
    -- Those in line before this place are in its way; all of them are, if this claim only leaves a mark.
    upto := CASE WHEN a_fifo AND mine.pos IS NOT NULL THEN mine.pos ELSE last + 1 END;
    IF beside IS NOT NULL THEN
      NULL; -- It is ahead of the whole queue, which waits for the hold that it replaces, or for one that does.
    ELSIF fits AND head IS NOT NULL THEN
      SELECT count(*), coalesce(bool_and(@suits:p@), true) INTO way, others_fit
      FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.claim <> a_me
        AND NOT (p.mode = 2 AND a_mode = 2) AND p.pos < upto;
    ELSIF head IS NOT NULL THEN
      -- Only how long to wait depends on their number here. Beyond a hundred it is at most that of the places before this
      -- one. A reader that waits has writers before it, and the readers among them are no measure.
      SELECT CASE WHEN f.count < 100 OR a_mode = 2 THEN f.count ELSE upto - f.first END INTO way
      FROM (SELECT count(*), min(g.pos) AS first FROM (
        SELECT p.pos FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.claim <> a_me
          AND NOT (p.mode = 2 AND a_mode = 2) AND p.pos < upto
        ORDER BY p.pos LIMIT CASE WHEN a_mode <> 2 THEN 100 END) g) f;
    END IF;
    -- Block `judge`, second part.
    since := CASE WHEN r.closed > t THEN t ELSE greatest(r.open, r.closed) END;
    IF refused IS NOT NULL THEN
      what := refused; retry := 0;
    ELSIF opens > t THEN
      a_serves := false;
      what := 'x'; retry := (date_part('epoch', opens - t) * 1000000)::bigint;
    ELSIF r.closed > t THEN
      what := 'c'; retry := (date_part('epoch', r.closed - t) * 1000000)::bigint; whom := r.closed_by;
    ELSIF fits AND (way = 0 OR others_fit AND t >= since + way * @patience@) THEN
      what := 'g'; durable := true;
      IF mine.pos = head THEN
        r.open := greatest(r.open, t);
      END IF;
      given := greatest(r.token + 1, now_us, a_floor);
      r.token := given;
      IF mine.pos IS NOT NULL THEN
        DELETE FROM @line@ p WHERE p.k = a_k AND p.pos = mine.pos;
      END IF;
      IF a_mode < 2 AND beside IS NULL THEN
        r.claim := a_me; r.mode := a_mode; r.holder := a_holder; r.asked := coalesce(mine.asked, t);
        r.ends := t + a_ttl * interval '1 microsecond';
      ELSE
        IF r.claim = beside THEN
          last := coalesce(last + 1, 1);
          INSERT INTO @line@ VALUES (a_k, last, r.claim, r.mode, 1, 0, true, old.token, r.ends, coalesce(r.asked, t), t,
            0, 0, NULL, NULL, false, coalesce(r.holder, ''));
          members := members + 1; kind := r.mode; r.claim := NULL; r.holder := NULL;
        END IF;
        INSERT INTO @line@ VALUES (a_k, coalesce(mine.pos, last + 1, 1), a_me, a_mode, a_take, a_lim, a_fifo, given,
          t + a_ttl * interval '1 microsecond', coalesce(mine.asked, t), t, a_ttl, a_probation, NULL, NULL, false, a_holder);
        IF members > 0 AND lim <> a_lim THEN
          UPDATE @line@ p SET lim = a_lim WHERE p.k = a_k AND p.held IS NOT NULL;
        END IF;
        lim := a_lim;
        members := members + 1; taken := taken + a_take; kind := least(kind, a_mode); r.crowd := true;
      END IF;
    ELSIF fits AND others_fit THEN
      -- Block `blocked`: the head of the queue has time to come.
      what := 'q';
      retry := (date_part('epoch', since + way * @patience@ - t) * 1000000)::bigint;
      SELECT p.holder INTO whom FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.claim <> a_me
        AND NOT (p.mode = 2 AND a_mode = 2) AND p.pos < upto ORDER BY p.pos LIMIT 1;
    ELSE
      -- Block `blocked`: the members are in its way.
      what := 'h'; whom := r.holder; first_end := r.ends;
      IF r.claim IS NULL THEN
        SELECT min(p.ends), (array_agg(p.holder ORDER BY p.held))[1] INTO first_end, whom
        FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL AND p.claim IS DISTINCT FROM beside;
      END IF;
      -- Nobody holds it if the claim, or one before it, takes more permits than the limit.
      retry := coalesce((date_part('epoch', first_end - t) * 1000000)::bigint + way * @patience_us@, a_ttl);
    END IF;
    -- Block `keep_place`, and `leave_queue` for a claim that does not wait.
    IF what <> 'g' THEN
      given := 0;
      IF a_fifo AND refused IS NULL THEN
        ahead := way;
      END IF;
      IF a_waits AND mine.pos IS NOT NULL AND refused IS NULL THEN
        UPDATE @line@ p SET mode = a_mode, take = a_take, lim = a_lim, fifo = a_fifo, holder = a_holder, tried = t,
          ends = t + a_ttl * interval '1 microsecond', ttl = a_ttl, probation = a_probation, word = a_word,
          process = a_process, told = false WHERE p.k = a_k AND p.pos = mine.pos;
      ELSIF a_waits AND refused IS NULL THEN
        IF beside IS NOT NULL THEN
          SELECT min(p.pos) - 2 INTO last FROM @line@ p WHERE p.k = a_k;
        END IF;
        INSERT INTO @line@ VALUES (a_k, coalesce(last + 1, 1), a_me, a_mode, a_take, a_lim, a_fifo, NULL,
          t + a_ttl * interval '1 microsecond', t, t, a_ttl, a_probation, a_word, a_process, false, a_holder);
        waits := true; r.crowd := true;
      ELSIF mine.pos IS NOT NULL THEN
        IF mine.pos = head THEN
          r.open := greatest(r.open, t);
        END IF;
        DELETE FROM @line@ p WHERE p.k = a_k AND p.pos = mine.pos;
      END IF;
    END IF;
    -- Block `wakeups`.
@serve@
  ELSIF what = 'g' THEN
    durable := true;
  END IF;
@news@
  -- Block `write`: the row, if it changed.
  r.crowd := r.crowd AND EXISTS (SELECT FROM @line@ p WHERE p.k = a_k);
  IF r IS DISTINCT FROM old THEN
    UPDATE @locks@ l SET token = r.token, claim = r.claim, mode = r.mode, ends = r.ends, asked = r.asked,
      crowd = r.crowd, open = r.open, holder = r.holder, closed_by = r.closed_by WHERE l.k = a_k;
  END IF;
  -- A blocked look, a place in line and a mark that a crash loses do no harm.
  ignored := set_config('synchronous_commit', CASE WHEN durable THEN a_durable ELSE 'off' END, true);
END @body@;
