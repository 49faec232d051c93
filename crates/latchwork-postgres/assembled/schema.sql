-- What `latchwork init` runs: the tables, the functions, and what they are for people.

-- A row for each key: the claim that holds it alone, the last token, and until when it stays closed. Only
-- the primary key is indexed, so every change of a claim is a HOT update. `k` is the key, shortened if it
-- is long, and `name` is the whole key then. The row with the empty key is no key's: its claim is the
-- guard's nonce, and its token a floor, see sweep_idle.sql. `mode`: 0 alone, 1 a writer; in the line also 2 a reader, 3 permits,
-- 9 a claim that has ended and must not come back.
CREATE TABLE IF NOT EXISTS "public"."latchwork" (
  k bytea PRIMARY KEY,
  name bytea,
  token bigint NOT NULL,
  claim uuid,
  mode smallint NOT NULL DEFAULT 0,
  ends timestamptz NOT NULL,
  asked timestamptz,
  crowd boolean NOT NULL DEFAULT false,
  closed timestamptz,
  open timestamptz NOT NULL DEFAULT 'epoch',
  holder bytea,
  closed_by bytea,
  CONSTRAINT latchwork_version_3 CHECK (true)
) WITH (fillfactor = 50);
-- Claims that share a key (`held` is their token) and claims that wait. If a key has a row here, its row above
-- says so (`crowd`), and only the functions change the key then, under the lock of that row.
CREATE TABLE IF NOT EXISTS "public"."latchwork_line" (
  k bytea NOT NULL,
  pos bigint NOT NULL,
  claim uuid NOT NULL,
  mode smallint NOT NULL,
  take integer NOT NULL,
  lim integer NOT NULL,
  fifo boolean NOT NULL,
  held bigint,
  ends timestamptz NOT NULL,
  asked timestamptz NOT NULL,
  tried timestamptz NOT NULL,
  ttl bigint NOT NULL,
  probation bigint NOT NULL,
  word uuid,
  process integer,
  told boolean NOT NULL DEFAULT false,
  holder bytea NOT NULL,
  PRIMARY KEY (k, pos)
) WITH (fillfactor = 50);
-- A claim finds its row, and a key those that share it, however long its queue is. `claim` never changes, and `held`
-- once, so a renewal and a look are HOT updates here too.
DO $body0$
BEGIN
  -- Not IF NOT EXISTS: that locks the table first.
  IF to_regclass(E'"public"."latchwork_claims"') IS NULL THEN
    CREATE UNIQUE INDEX "latchwork_claims" ON "public"."latchwork_line" (claim, k);
  END IF;
  IF to_regclass(E'"public"."latchwork_held"') IS NULL THEN
    CREATE INDEX "latchwork_held" ON "public"."latchwork_line" (k, held) WHERE held IS NOT NULL;
  END IF;
END $body0$;
-- The guard's identity. A crash and a promotion empty a table that is not logged; a clean restart does not.
CREATE UNLOGGED TABLE IF NOT EXISTS "public"."latchwork_alive" (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  nonce uuid NOT NULL,
  opens timestamptz NOT NULL,
  system text NOT NULL,
  timeline text NOT NULL,
  longest bigint NOT NULL
);

-- Functions of a newer client are not replaced: another one may have made them since this one has looked.
DO $body0$
BEGIN
  IF EXISTS (SELECT FROM pg_proc p WHERE p.oid = to_regproc(E'"public"."latchwork_stand"')
      AND substring(p.prosrc FROM '-- latchwork [0-9]+ functions ([0-9]+)')::integer > 2) THEN
    RAISE EXCEPTION 'the functions of a newer client were made meanwhile';
  END IF;
END $body0$;

-- Plans the statements of a function for the session, before the function locks the row of a key. Planning takes ten
-- times as long as running them, and others would wait for the row meanwhile. The function is called on keys of its own
-- that no client can name (0xff is not in UTF-8), and all of that is undone.
CREATE OR REPLACE FUNCTION "public"."latchwork_rehearse"(a_what text) RETURNS void LANGUAGE plpgsql AS $body0$
-- latchwork 3 functions 2
DECLARE
  n CONSTANT text := 'latchwork.' || a_what || '_368059566';
  alone CONSTANT bytea := decode('ff', 'hex') || decode(replace(gen_random_uuid()::text, '-', ''), 'hex');
  shared CONSTANT bytea := alone || decode('00', 'hex');
  c CONSTANT uuid[] := ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid()];
  s CONSTANT bigint := 60000000;
  t CONSTANT timestamptz := clock_timestamp();
BEGIN
  BEGIN
    PERFORM set_config(n, '3.2', true);
    IF a_what = 'stand' THEN
      PERFORM "public"."latchwork_stand"(alone, NULL, c[1], 0::smallint, 1, 0, true, false, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM "public"."latchwork_stand"(alone, NULL, c[2], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM "public"."latchwork_stand"(alone, NULL, c[3], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, 0, NULL, 'off');
      PERFORM "public"."latchwork_stand"(alone, NULL, c[3], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      UPDATE "public"."latchwork" l SET claim = NULL WHERE l.k = alone;
      PERFORM "public"."latchwork_stand"(alone, NULL, c[3], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM "public"."latchwork_stand"(alone, NULL, c[2], 0::smallint, 1, 0, true, false, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM "public"."latchwork_stand"(shared, NULL, c[1], 2::smallint, 1, 0, true, false, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM "public"."latchwork_stand"(shared, NULL, c[2], 1::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM "public"."latchwork_stand"(shared, NULL, c[3], 2::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM "public"."latchwork_stand"(shared, NULL, c[4], 1::smallint, 2, 0, true, true, s, 0,
        convert_to('beside=' || replace(c[1]::text, '-', ''), 'UTF8'), s, NULL, NULL, NULL, 'off');
    ELSE
      INSERT INTO "public"."latchwork" (k, token, claim, ends, crowd)
      VALUES (alone, 0, c[1], t + interval '1 minute', true), (shared, 0, NULL, 'epoch', true);
      INSERT INTO "public"."latchwork_line" (k, pos, claim, mode, take, lim, fifo, held, ends, asked, tried, ttl, probation, process, holder)
      SELECT p.k, p.pos, p.claim, p.mode, 1, p.lim, true, p.held, t + interval '1 minute', t, t, s, s, p.process, ''
      FROM (VALUES (alone, 1, c[2], 0::smallint, 0, NULL::bigint, 0), (alone, 2, c[3], 0, 0, NULL, NULL), (alone, 3, c[4], 0, 0, NULL, 0),
        (shared, 1, c[1], 3, 2, 1, NULL), (shared, 2, c[2], 3, 2, 2, NULL), (shared, 3, c[3], 3, 2, NULL, NULL),
        (shared, 4, c[4], 3, 2, NULL, 0)) p (k, pos, claim, mode, lim, held, process);
      IF a_what = 'leave' THEN
        PERFORM "public"."latchwork_leave"(shared, NULL, c[1], -3, '', NULL, 0, 'off');
        PERFORM "public"."latchwork_leave"(alone, NULL, c[1], 0, '', NULL, 0, 'off');
        PERFORM "public"."latchwork_leave"(alone, NULL, c[2], 0, '', NULL, 0, 'off');
        PERFORM "public"."latchwork_leave"(alone, NULL, c[3], 0, '', NULL, 0, 'off');
        PERFORM "public"."latchwork_leave"(shared, NULL, c[1], 0, '', NULL, 0, 'off');
        PERFORM "public"."latchwork_leave"(shared, NULL, c[3], 0, '', NULL, 0, 'off');
        PERFORM "public"."latchwork_leave"(shared, NULL, c[2], 1, '', NULL, 0, 'off');
      ELSE
        PERFORM "public"."latchwork_keep"(ARRAY[alone, shared], c[1:2], ARRAY[s, s], ARRAY[1::bigint, 1], ARRAY[NULL::bytea, NULL], false, 'off');
        PERFORM "public"."latchwork_keep"(ARRAY[alone, shared], c[1:2], ARRAY[s, s], ARRAY[1::bigint, 1], ARRAY[NULL::bytea, NULL], true, 'off');
      END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LW001', MESSAGE = 'nothing of this stays';
  EXCEPTION WHEN SQLSTATE 'LW001' THEN
    NULL;
  END;
  PERFORM set_config(n, '3.2', false);
END $body0$;

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
CREATE OR REPLACE FUNCTION "public"."latchwork_stand"(
  a_k bytea, a_name bytea, a_me uuid, a_mode smallint, a_take integer, a_lim integer, a_fifo boolean,
  a_waits boolean, a_ttl bigint, a_floor bigint, a_holder bytea, a_probation bigint, a_word uuid,
  a_process integer, a_nonce uuid, a_durable text,
  OUT what text, OUT given bigint, OUT retry bigint, OUT ahead integer, OUT whom bytea, OUT now_us bigint,
  OUT tell text[]
) LANGUAGE plpgsql AS $body0$
-- latchwork 3 functions 2
DECLARE
  r "public"."latchwork";
  old "public"."latchwork";
  w "public"."latchwork_line";
  other smallint;
  bound integer;
  mine "public"."latchwork_line";
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
  IF current_setting('latchwork.stand_368059566', true) IS DISTINCT FROM '3.2' THEN
    PERFORM "public"."latchwork_rehearse"('stand');
  END IF;
  PERFORM set_config('lock_timeout', '500ms', true);
  -- Block `guard`, which no record has: the nonce, and until when the store is in quarantine.
  IF a_nonce IS NOT NULL THEN
    SELECT g.opens INTO opens FROM "public"."latchwork_alive" g, "public"."latchwork" s WHERE g.nonce = a_nonce AND s.k = '' AND s.claim = a_nonce;
    IF NOT FOUND THEN
      what := 'n';
      RETURN;
    END IF;
  END IF;
  IF a_take = 2 AND a_mode < 3 THEN
    beside := convert_from(substring(a_holder FROM length(a_holder) - 31), 'UTF8')::uuid;
  END IF;
  -- Block `look`, a shortcut.
  IF NOT a_waits AND beside IS NULL THEN
    -- A look that leaves nothing need not lock the row, if one claim holds the key and nobody waits.
    SELECT * INTO r FROM "public"."latchwork" l WHERE l.k = a_k;
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
  SELECT * INTO r FROM "public"."latchwork" l WHERE l.k = a_k FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    INSERT INTO "public"."latchwork" (k, name, token, ends) VALUES (a_k, a_name, coalesce((SELECT f.token FROM "public"."latchwork" f WHERE f.k = ''), 0), 'epoch') ON CONFLICT DO NOTHING;
    SELECT * INTO r FROM "public"."latchwork" l WHERE l.k = a_k FOR NO KEY UPDATE;
    IF NOT FOUND THEN
      -- Somebody had made the row, and somebody has removed it: a grant would be in no row.
      RAISE serialization_failure USING MESSAGE = 'the row of the key was removed meanwhile';
    END IF;
    PERFORM "public"."latchwork_recheck"(a_nonce);
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
          SELECT p.pos FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.fifo AND p.ends > t ORDER BY p.pos LIMIT 100) f) q,
        (SELECT p.fifo, p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k ORDER BY p.pos LIMIT 1) a,
        (SELECT p.pos, p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k ORDER BY p.pos DESC LIMIT 1) z
      WHERE a.fifo AND a.ends > t AND z.ends > t AND NOT EXISTS (SELECT FROM (SELECT * FROM "public"."latchwork_line" o WHERE o.claim = a_me OFFSET 0) p WHERE p.k = a_k)
    ), i AS (
      INSERT INTO "public"."latchwork_line"
      SELECT a_k, c.last + 1, a_me, a_mode, a_take, a_lim, a_fifo, NULL, t + a_ttl * interval '1 microsecond', t, t,
        a_ttl, a_probation, a_word, a_process, false, a_holder FROM c
    )
    SELECT 'h', 0, (date_part('epoch', r.ends - t) * 1000000)::bigint + c.way * 2000000, c.way, r.holder,
      set_config('synchronous_commit', 'off', true)
    INTO what, given, retry, ahead, whom, ignored FROM c;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  -- Block `sweep`: drops what has ended.
  old := r; a_serves := true;
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
      SELECT p.* INTO mine FROM (SELECT * FROM "public"."latchwork_line" o WHERE o.claim = a_me OFFSET 0) p WHERE p.k = a_k;
      SELECT m.members, m.taken, m.kind, m.lim, q.pos, CASE WHEN q.take = 2 AND q.mode = 1 THEN q.pos END, z.pos, EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL),
        coalesce(least(m.ends, q.ends, z.ends, mine.ends,
          (SELECT p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k ORDER BY p.pos LIMIT 1),
          (SELECT p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos < mine.pos ORDER BY p.pos DESC LIMIT 1)) <= t, false)
      INTO members, taken, kind, lim, head, upgrade, last, waits, ended
      FROM (SELECT count(*) AS members, coalesce(sum(s.take), 0) AS taken, min(s.mode) AS kind, max(s.lim) AS lim, min(s.ends) AS ends
          FROM (SELECT * FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL ORDER BY p.held OFFSET 0) s) m
        LEFT JOIN (SELECT p.pos, p.ends, p.take, p.mode FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo ORDER BY p.pos LIMIT 1) q ON true
        LEFT JOIN (SELECT p.pos, p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k ORDER BY p.pos DESC LIMIT 1) z ON true;
      IF n = 1 AND last IS NULL AND a_nonce IS NOT NULL THEN
        -- Somebody has emptied the line alone, and who shared a key is not known any more: the nonce counts no longer.
        UPDATE "public"."latchwork_alive" SET nonce = gen_random_uuid();
        UPDATE "public"."latchwork" l SET crowd = false WHERE l.k IN (
          SELECT c.k FROM "public"."latchwork" c WHERE c.crowd AND NOT EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = c.k)
          FOR NO KEY UPDATE SKIP LOCKED);
        emptied := true; r.crowd := false; old.crowd := false;
      END IF;
      EXIT WHEN NOT ended;
      news := true;
      WITH ended AS (DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL AND p.ends <= t RETURNING p.ends)
      SELECT greatest(r.open, max(ended.ends)) INTO r.open FROM ended;
      SELECT min(p.pos) INTO head FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
      WITH ended AS (DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.ends <= t RETURNING p.*)
      SELECT greatest(r.open, max(ended.ends) FILTER (WHERE ended.fifo AND (head IS NULL OR ended.pos < head)))
      INTO r.open FROM ended;
    END LOOP;
  END IF;
  IF upgrade IS NOT NULL THEN
    -- An upgrade that waits ends with its read hold.
    SELECT * INTO w FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = upgrade;
    IF NOT EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL AND p.claim = convert_from(substring(w.holder FROM length(w.holder) - 31), 'UTF8')::uuid) THEN
      DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = upgrade;
      IF mine.pos = upgrade THEN
        mine := NULL;
      END IF;
      r.open := greatest(r.open, t); upgrade := NULL; news := true;
      SELECT min(p.pos) INTO head FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
    END IF;
  END IF;
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
    UPDATE "public"."latchwork_line" p SET ends = t + a_ttl * interval '1 microsecond' WHERE p.k = a_k AND p.pos = mine.pos;
    what := 'g'; given := mine.held;
  END IF;
  IF what IS NULL THEN
    -- Block `check_shape`: one kind of lock and one limit for a key.
    IF r.claim IS NOT NULL THEN
      other := r.mode; bound := 0;
    ELSIF members > 0 THEN
      other := kind; bound := lim;
    ELSIF waits THEN
      SELECT p.mode, p.lim INTO other, bound FROM "public"."latchwork_line" p
      WHERE p.k = a_k AND p.claim <> a_me AND p.mode <> 9 AND p.ends > t AND p.fifo ORDER BY p.pos LIMIT 1;
      IF NOT FOUND THEN
        SELECT p.mode, p.lim INTO other, bound FROM "public"."latchwork_line" p
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
      ELSE (SELECT p.mode FROM (SELECT * FROM "public"."latchwork_line" o WHERE o.claim = beside OFFSET 0) p WHERE p.k = a_k AND p.held IS NOT NULL) END;
    IF was IS NULL THEN
      refused := 'l';
    ELSIF was + a_mode <> 3 THEN
      what := 'b'; given := was;
    ELSIF a_mode = 1 AND upgrade IS DISTINCT FROM mine.pos THEN
      SELECT p.holder INTO whom FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = upgrade;
      IF FOUND THEN
        refused := 'u';
      END IF;
    END IF;
  END IF;
  IF what IS NULL THEN
    IF last IS NULL THEN
      -- Somebody may have changed the tables by hand: a row that `crowd` does not tell of keeps its place.
      SELECT max(p.pos) INTO last FROM "public"."latchwork_line" p WHERE p.k = a_k;
      IF last IS NOT NULL THEN
        DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.claim = a_me;
      END IF;
    END IF;
    -- Block `in_the_way`: whether it fits beside the members, and the places before this one that must be granted first.
    fits := CASE WHEN beside IS NULL THEN (r.claim IS NULL AND CASE a_mode WHEN 2 THEN kind IS NULL OR kind = 2 WHEN 3 THEN (kind IS NULL OR kind = 3) AND taken + a_take <= a_lim ELSE kind IS NULL END) ELSE a_mode = 2 OR r.claim IS NULL AND members = 1 END;
    way := 0; others_fit := true;
    -- Those in line before this place are in its way; all of them are, if this claim only leaves a mark.
    upto := CASE WHEN a_fifo AND mine.pos IS NOT NULL THEN mine.pos ELSE last + 1 END;
    IF beside IS NOT NULL THEN
      NULL; -- It is ahead of the whole queue, which waits for the hold that it replaces, or for one that does.
    ELSIF fits AND head IS NOT NULL THEN
      SELECT count(*), coalesce(bool_and(CASE WHEN p.take = 2 AND p.mode = 1 THEN r.claim IS NULL AND members = 1 ELSE (r.claim IS NULL AND CASE p.mode WHEN 2 THEN kind IS NULL OR kind = 2 WHEN 3 THEN (kind IS NULL OR kind = 3) AND taken + p.take <= p.lim ELSE kind IS NULL END) END), true) INTO way, others_fit
      FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.claim <> a_me
        AND NOT (p.mode = 2 AND a_mode = 2) AND p.pos < upto;
    ELSIF head IS NOT NULL THEN
      -- Only how long to wait depends on their number here. Beyond a hundred it is at most that of the places before this
      -- one. A reader that waits has writers before it, and the readers among them are no measure.
      SELECT CASE WHEN f.count < 100 OR a_mode = 2 THEN f.count ELSE upto - f.first END INTO way
      FROM (SELECT count(*), min(g.pos) AS first FROM (
        SELECT p.pos FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.claim <> a_me
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
    ELSIF fits AND (way = 0 OR others_fit AND t >= since + way * interval '2 seconds') THEN
      what := 'g'; durable := true;
      IF mine.pos = head THEN
        r.open := greatest(r.open, t);
      END IF;
      given := greatest(r.token + 1, now_us, a_floor);
      r.token := given;
      IF mine.pos IS NOT NULL THEN
        DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = mine.pos;
      END IF;
      IF a_mode < 2 AND beside IS NULL THEN
        r.claim := a_me; r.mode := a_mode; r.holder := a_holder; r.asked := coalesce(mine.asked, t);
        r.ends := t + a_ttl * interval '1 microsecond';
      ELSE
        IF r.claim = beside THEN
          last := coalesce(last + 1, 1);
          INSERT INTO "public"."latchwork_line" VALUES (a_k, last, r.claim, r.mode, 1, 0, true, old.token, r.ends, coalesce(r.asked, t), t,
            0, 0, NULL, NULL, false, coalesce(r.holder, ''));
          members := members + 1; kind := r.mode; r.claim := NULL; r.holder := NULL;
        END IF;
        INSERT INTO "public"."latchwork_line" VALUES (a_k, coalesce(mine.pos, last + 1, 1), a_me, a_mode, a_take, a_lim, a_fifo, given,
          t + a_ttl * interval '1 microsecond', coalesce(mine.asked, t), t, a_ttl, a_probation, NULL, NULL, false, a_holder);
        IF members > 0 AND lim <> a_lim THEN
          UPDATE "public"."latchwork_line" p SET lim = a_lim WHERE p.k = a_k AND p.held IS NOT NULL;
        END IF;
        lim := a_lim;
        members := members + 1; taken := taken + a_take; kind := least(kind, a_mode); r.crowd := true;
      END IF;
    ELSIF fits AND others_fit THEN
      -- Block `blocked`: the head of the queue has time to come.
      what := 'q';
      retry := (date_part('epoch', since + way * interval '2 seconds' - t) * 1000000)::bigint;
      SELECT p.holder INTO whom FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.claim <> a_me
        AND NOT (p.mode = 2 AND a_mode = 2) AND p.pos < upto ORDER BY p.pos LIMIT 1;
    ELSE
      -- Block `blocked`: the members are in its way.
      what := 'h'; whom := r.holder; first_end := r.ends;
      IF r.claim IS NULL THEN
        SELECT min(p.ends), (array_agg(p.holder ORDER BY p.held))[1] INTO first_end, whom
        FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL AND p.claim IS DISTINCT FROM beside;
      END IF;
      -- Nobody holds it if the claim, or one before it, takes more permits than the limit.
      retry := coalesce((date_part('epoch', first_end - t) * 1000000)::bigint + way * 2000000, a_ttl);
    END IF;
    -- Block `keep_place`, and `leave_queue` for a claim that does not wait.
    IF what <> 'g' THEN
      given := 0;
      IF a_fifo AND refused IS NULL THEN
        ahead := way;
      END IF;
      IF a_waits AND mine.pos IS NOT NULL AND refused IS NULL THEN
        UPDATE "public"."latchwork_line" p SET mode = a_mode, take = a_take, lim = a_lim, fifo = a_fifo, holder = a_holder, tried = t,
          ends = t + a_ttl * interval '1 microsecond', ttl = a_ttl, probation = a_probation, word = a_word,
          process = a_process, told = false WHERE p.k = a_k AND p.pos = mine.pos;
      ELSIF a_waits AND refused IS NULL THEN
        IF beside IS NOT NULL THEN
          SELECT min(p.pos) - 2 INTO last FROM "public"."latchwork_line" p WHERE p.k = a_k;
        END IF;
        INSERT INTO "public"."latchwork_line" VALUES (a_k, coalesce(last + 1, 1), a_me, a_mode, a_take, a_lim, a_fifo, NULL,
          t + a_ttl * interval '1 microsecond', t, t, a_ttl, a_probation, a_word, a_process, false, a_holder);
        waits := true; r.crowd := true;
      ELSIF mine.pos IS NOT NULL THEN
        IF mine.pos = head THEN
          r.open := greatest(r.open, t);
        END IF;
        DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = mine.pos;
      END IF;
    END IF;
    -- Block `wakeups`.
  -- Included in the functions: gives the key to those in line whose process listens, and tells the others who
  -- would be admitted, once each. a_me is not told: it asks by itself. Appends to `tell` a process and a message
  -- each.
  IF r.crowd AND a_serves AND (r.closed IS NULL OR r.closed <= t) AND r.claim IS NULL THEN
    seen := 0; reached := -9223372036854775807;
    -- Mostly it is one.
    LOOP
      EXIT WHEN r.claim IS NOT NULL;
      SELECT * INTO w FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos > reached AND p.held IS NULL AND p.fifo AND p.ends > t
        AND (p.mode <> 0 OR p.claim = a_me OR p.process IS NULL OR p.process <> ALL (silent)) ORDER BY p.pos LIMIT 1;
      EXIT WHEN NOT FOUND OR w.mode <> 2 AND seen > 0 OR NOT (CASE WHEN w.take = 2 AND w.mode = 1 THEN r.claim IS NULL AND members = 1 ELSE (r.claim IS NULL AND CASE w.mode WHEN 2 THEN kind IS NULL OR kind = 2 WHEN 3 THEN (kind IS NULL OR kind = 3) AND taken + w.take <= w.lim ELSE kind IS NULL END) END);
      reached := w.pos;
      IF w.claim <> a_me AND w.process IS NOT NULL AND w.process = ANY (heard) THEN
        NULL;
      ELSIF w.claim <> a_me AND w.process IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(368059566, w.process) THEN
        -- Its process holds that lock on the connection on which it listens.
        heard := heard || w.process;
      ELSIF w.claim <> a_me AND w.process IS NOT NULL THEN
        -- Nobody hears it: it keeps its place, and looks when it is back. So do others of its process that want the key
        -- alone. Whether others fit, or stop those behind them, is asked for each.
        silent := silent || w.process;
        CONTINUE;
      ELSE
        seen := seen + 1;
        CONTINUE;
      END IF;
      r.token := greatest(r.token + 1, (date_part('epoch', t) * 1000000)::bigint);
      r.open := greatest(r.open, t);
      IF w.mode < 2 AND w.take <> 2 THEN
        DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = w.pos;
        r.claim := w.claim; r.mode := w.mode; r.holder := w.holder; r.asked := w.asked;
        r.ends := t + w.probation * interval '1 microsecond';
      ELSE
        UPDATE "public"."latchwork_line" p SET held = r.token, ends = t + w.probation * interval '1 microsecond'
        WHERE p.k = a_k AND p.pos = w.pos;
        IF members > 0 AND lim <> w.lim THEN
          UPDATE "public"."latchwork_line" p SET lim = w.lim WHERE p.k = a_k AND p.held IS NOT NULL;
        END IF;
        lim := w.lim;
        members := members + 1; taken := taken + w.take; kind := least(kind, w.mode);
      END IF;
      durable := true;
      tell := tell || w.process::text || concat_ws(' ', 'g', w.claim, r.token, w.probation, w.word,
        greatest(0, (date_part('epoch', t - w.tried) * 1000000)::bigint));
    END LOOP;
    -- Those who only left a mark look when nobody in line is in their way.
    IF r.claim IS NULL AND waits THEN
      IF NOT EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.mode <> 2) THEN
        others := EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t);
        FOR w IN SELECT * FROM "public"."latchwork_line" p
          WHERE p.k = a_k AND p.held IS NULL AND NOT p.fifo AND NOT p.told AND p.ends > t ORDER BY p.pos LOOP
          IF w.claim <> a_me AND (w.mode = 2 OR NOT others) AND ((r.claim IS NULL AND CASE w.mode WHEN 2 THEN kind IS NULL OR kind = 2 WHEN 3 THEN (kind IS NULL OR kind = 3) AND taken + w.take <= w.lim ELSE kind IS NULL END)) THEN
            UPDATE "public"."latchwork_line" p SET told = true WHERE p.k = a_k AND p.pos = w.pos;
            IF w.process IS NOT NULL THEN
              tell := tell || w.process::text || concat_ws(' ', 'l', w.claim, 0);
            END IF;
          END IF;
        END LOOP;
      END IF;
    END IF;
  END IF;
  -- If those in front do not come, and nobody can tell them, the next one does.
  IF r.crowd AND a_serves AND durable IS NOT TRUE AND r.claim IS NULL AND (r.closed IS NULL OR r.closed <= t) THEN
    SELECT * INTO w FROM (SELECT * FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t ORDER BY p.pos LIMIT 100) f WHERE f.process IS NOT NULL AND f.claim <> a_me ORDER BY f.pos LIMIT 1;
    IF FOUND AND NOT w.told THEN
      UPDATE "public"."latchwork_line" p SET told = true WHERE p.k = a_k AND p.pos = w.pos;
      SELECT count(*) INTO seen FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.pos < w.pos;
      tell := tell || w.process::text || concat_ws(' ', 'l', w.claim, seen * 2000000 + 1000);
    END IF;
  END IF;
  -- If who was given the key has stopped, the next one comes when its probation is over.
  IF durable AND r.claim IS NOT NULL AND r.claim <> a_me AND waits THEN
    SELECT * INTO w FROM (SELECT * FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t ORDER BY p.pos LIMIT 100) f WHERE f.process IS NOT NULL ORDER BY f.pos LIMIT 1;
    IF FOUND THEN
      tell := tell || w.process::text || concat_ws(' ', 'l', w.claim,
        (date_part('epoch', r.ends - t) * 1000000)::bigint + 1000);
    END IF;
  END IF;
  ELSIF what = 'g' THEN
    durable := true;
  END IF;
  -- Included in the functions: observers are notified if the holders may have changed.
  IF durable OR news OR r.claim IS DISTINCT FROM old.claim THEN
    IF NOT pg_try_advisory_xact_lock(-368059567, hashtext(encode(a_k, 'hex'))) AND pg_notification_queue_usage() < 0.5::float8 THEN PERFORM pg_notify('latchwork_15f024ae_seen', hashtext(encode(a_k, 'hex'))::text); END IF;
  END IF;
  -- Block `write`: the row, if it changed.
  r.crowd := r.crowd AND EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k);
  IF r IS DISTINCT FROM old THEN
    UPDATE "public"."latchwork" l SET token = r.token, claim = r.claim, mode = r.mode, ends = r.ends, asked = r.asked,
      crowd = r.crowd, open = r.open, holder = r.holder, closed_by = r.closed_by WHERE l.k = a_k;
  END IF;
  -- A blocked look, a place in line and a mark that a crash loses do no harm.
  ignored := set_config('synchronous_commit', CASE WHEN durable THEN a_durable ELSE 'off' END, true);
END $body0$;

-- Ends a claim, held or waiting, and gives the key to the next in line: what kit::record does, under the lock
-- of the key's row. With a_bury above 0 (us) a try of the claim that lands within that time is refused: its
-- connection has ended, and nobody knows when it lands. With a_linger above 0 (us) the key stays closed; -1 ends no claim and opens a closed key, and one
-- below, -1 - n, ends no claim and sets the limit of permits to n: `tell` begins with `limit`, and the kind of lock (-1 if the
-- key is not used), the limit before and the permits held.
CREATE OR REPLACE FUNCTION "public"."latchwork_leave"(
  a_k bytea, a_name bytea, a_me uuid, a_linger bigint, a_holder bytea, a_nonce uuid, a_bury bigint,
  a_durable text,
  OUT released boolean, OUT now_us bigint, OUT tell text[]
) LANGUAGE plpgsql AS $body0$
-- latchwork 3 functions 2
DECLARE
  r "public"."latchwork";
  old "public"."latchwork";
  w "public"."latchwork_line";
  gone "public"."latchwork_line";
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
  mine "public"."latchwork_line";
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
  IF current_setting('latchwork.leave_368059566', true) IS DISTINCT FROM '3.2' THEN
    PERFORM "public"."latchwork_rehearse"('leave');
  END IF;
  IF a_nonce IS NOT NULL THEN
    a_serves := EXISTS (SELECT FROM "public"."latchwork_alive" g, "public"."latchwork" s WHERE g.nonce = a_nonce AND g.opens <= clock_timestamp()
      AND s.k = '' AND s.claim = a_nonce);
  END IF;
  SELECT * INTO r FROM "public"."latchwork" l WHERE l.k = a_k FOR NO KEY UPDATE;
  t := clock_timestamp();
  now_us := (date_part('epoch', t) * 1000000)::bigint;
  IF r.k IS NULL AND a_bury > 0 THEN
    INSERT INTO "public"."latchwork" (k, name, token, ends) VALUES (a_k, a_name, coalesce((SELECT f.token FROM "public"."latchwork" f WHERE f.k = ''), 0), 'epoch') ON CONFLICT DO NOTHING;
    SELECT * INTO r FROM "public"."latchwork" l WHERE l.k = a_k FOR NO KEY UPDATE;
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
    SELECT * INTO w FROM "public"."latchwork_line" p WHERE p.k = a_k ORDER BY p.pos LIMIT 1;
    IF w.fifo AND w.held IS NULL AND w.mode < 2 AND w.take <> 2 AND w.ends > t AND w.claim <> a_me AND w.process IS NOT NULL
      AND (w.process = 0 OR NOT pg_try_advisory_xact_lock_shared(368059566, w.process)) THEN
      WITH d AS (
        DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = w.pos
      ), q AS MATERIALIZED (
        SELECT p.claim, p.process FROM "public"."latchwork_line" p
        WHERE p.k = a_k AND p.pos > w.pos AND p.held IS NULL AND p.fifo AND p.process IS NOT NULL AND p.ends > t
        ORDER BY p.pos LIMIT 1
      ), u AS (
        UPDATE "public"."latchwork" l SET token = greatest(l.token + 1, now_us), claim = w.claim, mode = w.mode, holder = w.holder,
          asked = w.asked, ends = t + w.probation * interval '1 microsecond', open = greatest(l.open, t),
          crowd = EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos > w.pos)
        WHERE l.k = a_k RETURNING l.token
      )
      SELECT true, ARRAY[w.process::text, concat_ws(' ', 'g', w.claim, u.token, w.probation, w.word,
          greatest(0, (date_part('epoch', t - w.tried) * 1000000)::bigint))]
        || CASE WHEN q.claim IS NOT NULL THEN ARRAY[q.process::text, concat_ws(' ', 'l', q.claim, w.probation + 1000)] END,
        set_config('synchronous_commit', a_durable, true)
      INTO released, tell, ignored FROM u LEFT JOIN q ON true;
      IF NOT pg_try_advisory_xact_lock(-368059567, hashtext(encode(a_k, 'hex'))) AND pg_notification_queue_usage() < 0.5::float8 THEN PERFORM pg_notify('latchwork_15f024ae_seen', hashtext(encode(a_k, 'hex'))::text); END IF;
      RETURN;
    END IF;
  END IF;
  old := r;
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
      SELECT p.* INTO mine FROM (SELECT * FROM "public"."latchwork_line" o WHERE o.claim = a_me OFFSET 0) p WHERE p.k = a_k;
      SELECT m.members, m.taken, m.kind, m.lim, q.pos, CASE WHEN q.take = 2 AND q.mode = 1 THEN q.pos END, z.pos, EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL),
        coalesce(least(m.ends, q.ends, z.ends, mine.ends,
          (SELECT p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k ORDER BY p.pos LIMIT 1),
          (SELECT p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos < mine.pos ORDER BY p.pos DESC LIMIT 1)) <= t, false)
      INTO members, taken, kind, lim, head, upgrade, last, waits, ended
      FROM (SELECT count(*) AS members, coalesce(sum(s.take), 0) AS taken, min(s.mode) AS kind, max(s.lim) AS lim, min(s.ends) AS ends
          FROM (SELECT * FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL ORDER BY p.held OFFSET 0) s) m
        LEFT JOIN (SELECT p.pos, p.ends, p.take, p.mode FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo ORDER BY p.pos LIMIT 1) q ON true
        LEFT JOIN (SELECT p.pos, p.ends FROM "public"."latchwork_line" p WHERE p.k = a_k ORDER BY p.pos DESC LIMIT 1) z ON true;
      IF n = 1 AND last IS NULL AND a_nonce IS NOT NULL THEN
        -- Somebody has emptied the line alone, and who shared a key is not known any more: the nonce counts no longer.
        UPDATE "public"."latchwork_alive" SET nonce = gen_random_uuid();
        UPDATE "public"."latchwork" l SET crowd = false WHERE l.k IN (
          SELECT c.k FROM "public"."latchwork" c WHERE c.crowd AND NOT EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = c.k)
          FOR NO KEY UPDATE SKIP LOCKED);
        emptied := true; r.crowd := false; old.crowd := false;
      END IF;
      EXIT WHEN NOT ended;
      news := true;
      WITH ended AS (DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL AND p.ends <= t RETURNING p.ends)
      SELECT greatest(r.open, max(ended.ends)) INTO r.open FROM ended;
      SELECT min(p.pos) INTO head FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
      WITH ended AS (DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.ends <= t RETURNING p.*)
      SELECT greatest(r.open, max(ended.ends) FILTER (WHERE ended.fifo AND (head IS NULL OR ended.pos < head)))
      INTO r.open FROM ended;
    END LOOP;
  END IF;
  IF upgrade IS NOT NULL THEN
    -- An upgrade that waits ends with its read hold.
    SELECT * INTO w FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = upgrade;
    IF NOT EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL AND p.claim = convert_from(substring(w.holder FROM length(w.holder) - 31), 'UTF8')::uuid) THEN
      DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = upgrade;
      IF mine.pos = upgrade THEN
        mine := NULL;
      END IF;
      r.open := greatest(r.open, t); upgrade := NULL; news := true;
      SELECT min(p.pos) INTO head FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
    END IF;
  END IF;
  IF emptied THEN
    a_serves := false;
  END IF;
  IF a_linger < -1 THEN
    IF r.claim IS NOT NULL THEN
      other := r.mode;
    ELSIF members > 0 THEN
      other := kind; bound := lim;
    ELSIF waits THEN
      SELECT p.mode, p.lim INTO other, bound FROM "public"."latchwork_line" p
      WHERE p.k = a_k AND p.mode <> 9 AND p.ends > t AND p.fifo ORDER BY p.pos LIMIT 1;
      IF NOT FOUND THEN
        SELECT p.mode, p.lim INTO other, bound FROM "public"."latchwork_line" p
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
      UPDATE "public"."latchwork_line" p SET lim = -1 - a_linger
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
    DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = mine.pos AND p.mode <> 9 RETURNING p.* INTO gone;
    IF gone.held IS NOT NULL THEN
      was_held := true;
      members := members - 1; taken := taken - gone.take;
      IF members = 0 THEN
        kind := NULL;
      ELSIF gone.mode = 1 THEN
        SELECT min(p.mode) INTO kind FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL;
      END IF;
      IF upgrade IS NOT NULL THEN
    SELECT * INTO w FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = upgrade;
    IF NOT EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NOT NULL AND p.claim = convert_from(substring(w.holder FROM length(w.holder) - 31), 'UTF8')::uuid) THEN
      DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = upgrade;
      IF mine.pos = upgrade THEN
        mine := NULL;
      END IF;
      r.open := greatest(r.open, t); upgrade := NULL; news := true;
      SELECT min(p.pos) INTO head FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
    END IF;
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
  -- Included in the functions: gives the key to those in line whose process listens, and tells the others who
  -- would be admitted, once each. a_me is not told: it asks by itself. Appends to `tell` a process and a message
  -- each.
  IF r.crowd AND a_serves AND (r.closed IS NULL OR r.closed <= t) AND r.claim IS NULL THEN
    seen := 0; reached := -9223372036854775807;
    -- Mostly it is one.
    LOOP
      EXIT WHEN r.claim IS NOT NULL;
      SELECT * INTO w FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos > reached AND p.held IS NULL AND p.fifo AND p.ends > t
        AND (p.mode <> 0 OR p.claim = a_me OR p.process IS NULL OR p.process <> ALL (silent)) ORDER BY p.pos LIMIT 1;
      EXIT WHEN NOT FOUND OR w.mode <> 2 AND seen > 0 OR NOT (CASE WHEN w.take = 2 AND w.mode = 1 THEN r.claim IS NULL AND members = 1 ELSE (r.claim IS NULL AND CASE w.mode WHEN 2 THEN kind IS NULL OR kind = 2 WHEN 3 THEN (kind IS NULL OR kind = 3) AND taken + w.take <= w.lim ELSE kind IS NULL END) END);
      reached := w.pos;
      IF w.claim <> a_me AND w.process IS NOT NULL AND w.process = ANY (heard) THEN
        NULL;
      ELSIF w.claim <> a_me AND w.process IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(368059566, w.process) THEN
        -- Its process holds that lock on the connection on which it listens.
        heard := heard || w.process;
      ELSIF w.claim <> a_me AND w.process IS NOT NULL THEN
        -- Nobody hears it: it keeps its place, and looks when it is back. So do others of its process that want the key
        -- alone. Whether others fit, or stop those behind them, is asked for each.
        silent := silent || w.process;
        CONTINUE;
      ELSE
        seen := seen + 1;
        CONTINUE;
      END IF;
      r.token := greatest(r.token + 1, (date_part('epoch', t) * 1000000)::bigint);
      r.open := greatest(r.open, t);
      IF w.mode < 2 AND w.take <> 2 THEN
        DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = w.pos;
        r.claim := w.claim; r.mode := w.mode; r.holder := w.holder; r.asked := w.asked;
        r.ends := t + w.probation * interval '1 microsecond';
      ELSE
        UPDATE "public"."latchwork_line" p SET held = r.token, ends = t + w.probation * interval '1 microsecond'
        WHERE p.k = a_k AND p.pos = w.pos;
        IF members > 0 AND lim <> w.lim THEN
          UPDATE "public"."latchwork_line" p SET lim = w.lim WHERE p.k = a_k AND p.held IS NOT NULL;
        END IF;
        lim := w.lim;
        members := members + 1; taken := taken + w.take; kind := least(kind, w.mode);
      END IF;
      durable := true;
      tell := tell || w.process::text || concat_ws(' ', 'g', w.claim, r.token, w.probation, w.word,
        greatest(0, (date_part('epoch', t - w.tried) * 1000000)::bigint));
    END LOOP;
    -- Those who only left a mark look when nobody in line is in their way.
    IF r.claim IS NULL AND waits THEN
      IF NOT EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.mode <> 2) THEN
        others := EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t);
        FOR w IN SELECT * FROM "public"."latchwork_line" p
          WHERE p.k = a_k AND p.held IS NULL AND NOT p.fifo AND NOT p.told AND p.ends > t ORDER BY p.pos LOOP
          IF w.claim <> a_me AND (w.mode = 2 OR NOT others) AND ((r.claim IS NULL AND CASE w.mode WHEN 2 THEN kind IS NULL OR kind = 2 WHEN 3 THEN (kind IS NULL OR kind = 3) AND taken + w.take <= w.lim ELSE kind IS NULL END)) THEN
            UPDATE "public"."latchwork_line" p SET told = true WHERE p.k = a_k AND p.pos = w.pos;
            IF w.process IS NOT NULL THEN
              tell := tell || w.process::text || concat_ws(' ', 'l', w.claim, 0);
            END IF;
          END IF;
        END LOOP;
      END IF;
    END IF;
  END IF;
  -- If those in front do not come, and nobody can tell them, the next one does.
  IF r.crowd AND a_serves AND durable IS NOT TRUE AND r.claim IS NULL AND (r.closed IS NULL OR r.closed <= t) THEN
    SELECT * INTO w FROM (SELECT * FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t ORDER BY p.pos LIMIT 100) f WHERE f.process IS NOT NULL AND f.claim <> a_me ORDER BY f.pos LIMIT 1;
    IF FOUND AND NOT w.told THEN
      UPDATE "public"."latchwork_line" p SET told = true WHERE p.k = a_k AND p.pos = w.pos;
      SELECT count(*) INTO seen FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.pos < w.pos;
      tell := tell || w.process::text || concat_ws(' ', 'l', w.claim, seen * 2000000 + 1000);
    END IF;
  END IF;
  -- If who was given the key has stopped, the next one comes when its probation is over.
  IF durable AND r.claim IS NOT NULL AND r.claim <> a_me AND waits THEN
    SELECT * INTO w FROM (SELECT * FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t ORDER BY p.pos LIMIT 100) f WHERE f.process IS NOT NULL ORDER BY f.pos LIMIT 1;
    IF FOUND THEN
      tell := tell || w.process::text || concat_ws(' ', 'l', w.claim,
        (date_part('epoch', r.ends - t) * 1000000)::bigint + 1000);
    END IF;
  END IF;
  durable := durable OR a_linger < -1 AND released;
  IF a_bury > 0 THEN
    DELETE FROM "public"."latchwork_line" p WHERE p.k = a_k AND p.pos = (SELECT x.pos FROM (SELECT * FROM "public"."latchwork_line" o WHERE o.claim = a_me OFFSET 0) x WHERE x.k = a_k);
    INSERT INTO "public"."latchwork_line"
    SELECT a_k, coalesce(max(p.pos) + 1, 1), a_me, 9, 0, 0, false, NULL, t + a_bury * interval '1 microsecond', t, t,
      a_bury, 0, NULL, NULL, true, '' FROM "public"."latchwork_line" p WHERE p.k = a_k;
    r.crowd := true;
  END IF;
  -- Included in the functions: observers are notified if the holders may have changed.
  IF durable OR news OR r.claim IS DISTINCT FROM old.claim THEN
    IF NOT pg_try_advisory_xact_lock(-368059567, hashtext(encode(a_k, 'hex'))) AND pg_notification_queue_usage() < 0.5::float8 THEN PERFORM pg_notify('latchwork_15f024ae_seen', hashtext(encode(a_k, 'hex'))::text); END IF;
  END IF;
  r.crowd := r.crowd AND EXISTS (SELECT FROM "public"."latchwork_line" p WHERE p.k = a_k);
  IF r IS DISTINCT FROM old THEN
    UPDATE "public"."latchwork" l SET token = r.token, claim = r.claim, mode = r.mode, ends = r.ends, asked = r.asked,
      crowd = r.crowd, open = r.open, holder = r.holder, closed = r.closed, closed_by = r.closed_by WHERE l.k = a_k;
  END IF;
  ignored := set_config('synchronous_commit', CASE WHEN durable THEN a_durable ELSE 'off' END, true);
END $body0$;

-- Starts the ttl of claims anew, one after the other, each under the lock of its key's row. `o_state` is
-- h held, l lost, or u not known: the row is locked by somebody else.
CREATE OR REPLACE FUNCTION "public"."latchwork_keep"(
  a_k bytea[], a_claim uuid[], a_ttl bigint[], a_floor bigint[], a_holder bytea[], a_wait boolean, a_durable text
) RETURNS TABLE (o_n bigint, o_state text, o_token bigint, o_time bigint) LANGUAGE plpgsql AS $body0$
-- latchwork 3 functions 2
DECLARE
  c record;
  r "public"."latchwork";
  t timestamptz;
  given bigint;
BEGIN
  IF current_setting('latchwork.keep_368059566', true) IS DISTINCT FROM '3.2' THEN
    PERFORM "public"."latchwork_rehearse"('keep');
  END IF;
  PERFORM set_config('synchronous_commit', a_durable, true);
  FOR c IN
    SELECT u.* FROM unnest(a_k, a_claim, a_ttl, a_floor, a_holder) WITH ORDINALITY AS u (k, claim, ttl, floor, holder, n)
    ORDER BY u.k
  LOOP
    o_n := c.n; o_state := 'l'; o_token := NULL;
    IF a_wait THEN
      SELECT * INTO r FROM "public"."latchwork" l WHERE l.k = c.k FOR NO KEY UPDATE;
    ELSE
      SELECT * INTO r FROM "public"."latchwork" l WHERE l.k = c.k FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (SELECT FROM "public"."latchwork" l WHERE l.k = c.k) THEN
        o_state := 'u';
      END IF;
    END IF;
    t := clock_timestamp();
    IF r.k IS NOT NULL AND r.claim = c.claim AND r.ends > t THEN
      o_token := greatest(r.token, c.floor);
      UPDATE "public"."latchwork" l SET ends = t + c.ttl * interval '1 microsecond', token = o_token,
        holder = coalesce(c.holder, l.holder) WHERE l.k = c.k;
      o_state := 'h';
    ELSIF r.crowd THEN
      UPDATE "public"."latchwork_line" p SET ends = t + c.ttl * interval '1 microsecond', held = greatest(p.held, c.floor),
        holder = coalesce(c.holder, p.holder)
      WHERE p.k = c.k AND p.pos = (SELECT x.pos FROM (SELECT * FROM "public"."latchwork_line" o WHERE o.claim = c.claim OFFSET 0) x WHERE x.k = c.k)
        AND p.held IS NOT NULL AND p.ends > t RETURNING p.held INTO given;
      IF FOUND THEN
        o_token := given; o_state := 'h';
        IF given > r.token THEN
          UPDATE "public"."latchwork" l SET token = given WHERE l.k = c.k;
        END IF;
      END IF;
    END IF;
    o_time := (date_part('epoch', t) * 1000000)::bigint;
    RETURN NEXT;
  END LOOP;
END $body0$;

-- The guard's nonce must still count when the row of a key was missing and is made: who deletes all rows of the table
-- deletes the guard's as well, and a try that waited for that has read it before.
CREATE OR REPLACE FUNCTION "public"."latchwork_recheck"(a_nonce uuid) RETURNS boolean LANGUAGE plpgsql AS $body0$
-- latchwork 3 functions 2
BEGIN
  IF a_nonce IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."latchwork_alive" g, "public"."latchwork" s WHERE g.nonce = a_nonce AND s.k = '' AND s.claim = a_nonce) THEN
    RAISE serialization_failure USING MESSAGE = 'the rows of the table were removed meanwhile';
  END IF;
  RETURN true;
END $body0$;
-- The guard: says which nonce counts and how long nothing may be granted yet (us). If the table that a crash
-- empties has no nonce, or the server is another than the one that it was drawn on, or the table of locks has
-- lost the row that repeats it, a new one is drawn, and nothing is granted until each claim that may have
-- been lost has ended. With a_vouch somebody says that there is none.
CREATE OR REPLACE FUNCTION "public"."latchwork_heal"(a_longest bigint, a_vouch boolean, OUT nonce uuid, OUT closed bigint, OUT longest bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body0$
-- latchwork 3 functions 2
DECLARE
  g "public"."latchwork_alive";
  system text := (SELECT c.system_identifier::text FROM pg_control_system() c);
  timeline text := left(pg_walfile_name(pg_current_wal_lsn()), 8);
BEGIN
  PERFORM set_config('lock_timeout', '2s', true);
  PERFORM pg_advisory_xact_lock(368059566, 0);
  SELECT * INTO g FROM "public"."latchwork_alive";
  IF a_vouch OR g.nonce IS NULL OR g.system <> system OR g.timeline <> timeline
    OR g.opens > clock_timestamp() + g.longest * interval '1.02 microseconds' + interval '1 second'
    OR NOT EXISTS (SELECT FROM "public"."latchwork" s WHERE s.k = '' AND s.claim = g.nonce) THEN
    PERFORM set_config('synchronous_commit', 'on', true);
    g.nonce := gen_random_uuid();
    g.longest := a_longest;
    g.opens := clock_timestamp();
    IF NOT a_vouch THEN
      g.opens := g.opens + a_longest * interval '1.01 microseconds' + interval '1 millisecond';
    END IF;
    INSERT INTO "public"."latchwork_alive" AS a VALUES (true, g.nonce, g.opens, system, timeline, a_longest)
    ON CONFLICT (one) DO UPDATE SET nonce = excluded.nonce, opens = excluded.opens, system = excluded.system,
      timeline = excluded.timeline, longest = excluded.longest;
    INSERT INTO "public"."latchwork" AS s (k, token, claim, ends) VALUES ('', 0, g.nonce, 'epoch')
    ON CONFLICT (k) DO UPDATE SET claim = excluded.claim;
  END IF;
  nonce := g.nonce; longest := g.longest;
  closed := greatest(0, (date_part('epoch', g.opens - clock_timestamp()) * 1000000)::bigint);
END $body0$;

-- For people. The comment on the table of locks is its version, for clients that look for it there.
COMMENT ON COLUMN "public"."latchwork".k IS 'the key, or its start, 0xff and a digest if it has more than 1,024 bytes. The empty key is Latchwork''s own row: its claim is the guard''s nonce, and no token is smaller than its token';
COMMENT ON COLUMN "public"."latchwork".name IS 'the whole key if k is shortened';
COMMENT ON COLUMN "public"."latchwork".token IS 'the last fencing token';
COMMENT ON COLUMN "public"."latchwork".claim IS 'the claim that holds the key alone';
COMMENT ON COLUMN "public"."latchwork".mode IS 'how that claim holds it: 0 alone, 1 as the writer';
COMMENT ON COLUMN "public"."latchwork".ends IS 'when its lease ends, or has ended';
COMMENT ON COLUMN "public"."latchwork".asked IS 'when it asked for the key';
COMMENT ON COLUMN "public"."latchwork".crowd IS 'whether the table of the queue has rows of the key';
COMMENT ON COLUMN "public"."latchwork".closed IS 'until when the key stays closed';
COMMENT ON COLUMN "public"."latchwork".open IS 'since when the first in the queue may take the key';
COMMENT ON COLUMN "public"."latchwork".holder IS 'what the holder says of itself';
COMMENT ON COLUMN "public"."latchwork".closed_by IS 'what the client says of itself that has closed the key';
COMMENT ON TABLE "public"."latchwork_line" IS 'Latchwork: claims that share a key, and claims that wait for one';
COMMENT ON COLUMN "public"."latchwork_line".k IS 'the key';
COMMENT ON COLUMN "public"."latchwork_line".pos IS 'the place in the queue';
COMMENT ON COLUMN "public"."latchwork_line".claim IS 'the claim';
COMMENT ON COLUMN "public"."latchwork_line".mode IS '0 alone, 1 writer, 2 reader, 3 permits, 9 a claim that has ended and must not come back';
COMMENT ON COLUMN "public"."latchwork_line".take IS 'how many permits it takes; 2 for a reader or writer that replaces a hold';
COMMENT ON COLUMN "public"."latchwork_line".lim IS 'how many permits there are, 0 if the key has none';
COMMENT ON COLUMN "public"."latchwork_line".fifo IS 'whether it waits in order';
COMMENT ON COLUMN "public"."latchwork_line".held IS 'its token if it holds the key; NULL if it waits';
COMMENT ON COLUMN "public"."latchwork_line".ends IS 'when its lease or its place ends';
COMMENT ON COLUMN "public"."latchwork_line".asked IS 'when it asked for the key';
COMMENT ON COLUMN "public"."latchwork_line".tried IS 'when it asked last';
COMMENT ON COLUMN "public"."latchwork_line".ttl IS 'the length of its lease in microseconds';
COMMENT ON COLUMN "public"."latchwork_line".probation IS 'the length of a lease that it is given while it waits, in microseconds';
COMMENT ON COLUMN "public"."latchwork_line".word IS 'by what it knows that such a grant is the store''s';
COMMENT ON COLUMN "public"."latchwork_line".process IS 'the number of its process, which holds an advisory lock of that number while it listens';
COMMENT ON COLUMN "public"."latchwork_line".told IS 'whether it was notified since its last try';
COMMENT ON COLUMN "public"."latchwork_line".holder IS 'what it says of itself';
COMMENT ON TABLE "public"."latchwork_alive" IS 'Latchwork: one row, not logged: by it the guard notices a loss of data';
COMMENT ON COLUMN "public"."latchwork_alive".one IS 'there is one row';
COMMENT ON COLUMN "public"."latchwork_alive".nonce IS 'what each try names; the row of the empty key repeats it';
COMMENT ON COLUMN "public"."latchwork_alive".opens IS 'when the quarantine ends';
COMMENT ON COLUMN "public"."latchwork_alive".system IS 'the system identifier of the server that has drawn the nonce';
COMMENT ON COLUMN "public"."latchwork_alive".timeline IS 'its timeline';
COMMENT ON COLUMN "public"."latchwork_alive".longest IS 'max_ttl in microseconds';
COMMENT ON FUNCTION "public"."latchwork_stand" IS 'Latchwork: grants a claim, or keeps its place in the queue';
COMMENT ON FUNCTION "public"."latchwork_leave" IS 'Latchwork: ends a claim, and gives the key to the next in the queue';
COMMENT ON FUNCTION "public"."latchwork_keep" IS 'Latchwork: renews claims';
COMMENT ON FUNCTION "public"."latchwork_heal" IS 'Latchwork: says which nonce counts, and begins a quarantine after a loss of data';
COMMENT ON FUNCTION "public"."latchwork_rehearse" IS 'Latchwork: plans the statements of a function before it locks a key';
COMMENT ON FUNCTION "public"."latchwork_recheck" IS 'Latchwork: fails if the guard''s nonce counts no longer';
