-- The guard's nonce must still count when the row of a key was missing and is made: who deletes all rows of the table
-- deletes the guard's as well, and a try that waited for that has read it before.
CREATE OR REPLACE FUNCTION @recheck@(a_nonce uuid) RETURNS boolean LANGUAGE plpgsql AS @body@
-- @made@
BEGIN
  IF a_nonce IS NOT NULL AND NOT EXISTS (SELECT FROM @alive@ g, @locks@ s WHERE g.nonce = a_nonce AND s.k = '' AND s.claim = a_nonce) THEN
    RAISE serialization_failure USING MESSAGE = 'the rows of the table were removed meanwhile';
  END IF;
  RETURN true;
END @body@;
-- The guard: says which nonce counts and how long nothing may be granted yet (us). If the table that a crash
-- empties has no nonce, or the server is another than the one that it was drawn on, or the table of locks has
-- lost the row that repeats it, a new one is drawn, and nothing is granted until each claim that may have
-- been lost has ended. With a_vouch somebody says that there is none.
CREATE OR REPLACE FUNCTION @heal@(a_longest bigint, a_vouch boolean, OUT nonce uuid, OUT closed bigint, OUT longest bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS @body@
-- @made@
DECLARE
  g @alive@;
  system text := (SELECT c.system_identifier::text FROM pg_control_system() c);
  timeline text := left(pg_walfile_name(pg_current_wal_lsn()), 8);
BEGIN
  PERFORM set_config('lock_timeout', '2s', true);
  PERFORM pg_advisory_xact_lock(@class@, 0);
  SELECT * INTO g FROM @alive@;
  IF a_vouch OR g.nonce IS NULL OR g.system <> system OR g.timeline <> timeline
    OR g.opens > clock_timestamp() + g.longest * interval '1.02 microseconds' + interval '1 second'
    OR NOT EXISTS (SELECT FROM @locks@ s WHERE s.k = '' AND s.claim = g.nonce) THEN
    PERFORM set_config('synchronous_commit', 'on', true);
    g.nonce := gen_random_uuid();
    g.longest := a_longest;
    g.opens := clock_timestamp();
    IF NOT a_vouch THEN
      g.opens := g.opens + a_longest * interval '1.01 microseconds' + interval '1 millisecond';
    END IF;
    INSERT INTO @alive@ AS a VALUES (true, g.nonce, g.opens, system, timeline, a_longest)
    ON CONFLICT (one) DO UPDATE SET nonce = excluded.nonce, opens = excluded.opens, system = excluded.system,
      timeline = excluded.timeline, longest = excluded.longest;
    INSERT INTO @locks@ AS s (k, token, claim, ends) VALUES ('', 0, g.nonce, 'epoch')
    ON CONFLICT (k) DO UPDATE SET claim = excluded.claim;
  END IF;
  nonce := g.nonce; longest := g.longest;
  closed := greatest(0, (date_part('epoch', g.opens - clock_timestamp()) * 1000000)::bigint);
END @body@;
