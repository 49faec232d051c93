-- What a new connection asks first: who answers, and whether the tables are what they should be. The session has the
-- search_path of the role or the database, in which anybody may have made functions and operators, so each name has its
-- schema, and `===` stands for the server's own operator.
--
-- $1 the table of locks; $2, $3 and $4 the names of the schema, of that table and of all tables; $5 the names of the
-- functions; $6 whether triggers of an older version are expected.
--
-- Those who own a table or a function can run code as each user who writes to it. They are trusted if they are that
-- user, a superuser, the owner of the database or of the schema, or a role of which the user is a member. Unless the
-- user is a superuser, also if the schema's owner has given them by name the right to create something there.
WITH me AS (
  SELECT r.oid, r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname === current_user
), place AS (
  SELECT n.oid, n.nspowner, n.nspacl, d.datdba FROM pg_catalog.pg_namespace n, pg_catalog.pg_database d
  WHERE n.nspname === $2 AND d.datname === pg_catalog.current_database()
), tables AS (
  SELECT c.oid, c.relname, c.relowner, c.relrowsecurity OR c.relforcerowsecurity AS hides
  FROM pg_catalog.pg_class c, place WHERE c.relnamespace === place.oid AND c.relname === ANY ($4)
), functions AS (
  SELECT p.oid, p.proname, p.proowner FROM pg_catalog.pg_proc p, place
  WHERE p.pronamespace === place.oid AND p.proname === ANY ($5)
), triggers AS (
  SELECT t.tgname, c.relname, p.proowner, $6 AND t.tgname === ANY ('{latchwork_observe_new,latchwork_observe,latchwork_observe_end}') AS is_older
  FROM pg_catalog.pg_trigger t, tables c, pg_catalog.pg_proc p
  WHERE t.tgrelid === c.oid AND NOT t.tgisinternal AND p.oid === t.tgfoid
), owned AS (
  SELECT pg_catalog.concat('the table ', relname) AS what, relowner AS owner FROM tables
  UNION ALL SELECT pg_catalog.concat('the function ', proname), proowner FROM functions
  UNION ALL SELECT pg_catalog.concat('the function of the trigger ', tgname), proowner FROM triggers WHERE is_older
), strange AS (
  SELECT pg_catalog.concat(what, ' belongs to ', pg_catalog.pg_get_userbyid(owner)) AS what FROM owned, me, place
  WHERE NOT (owner === me.oid
    OR (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid === owner)
    OR pg_catalog.pg_has_role(owner, place.datdba, 'MEMBER') OR pg_catalog.pg_has_role(owner, place.nspowner, 'MEMBER')
    OR NOT me.rolsuper AND (pg_catalog.pg_has_role(owner, 'MEMBER') OR EXISTS (
      SELECT FROM pg_catalog.aclexplode(place.nspacl) a WHERE a.privilege_type === 'CREATE'
        AND CASE WHEN a.grantee === 0::pg_catalog.oid THEN false ELSE pg_catalog.pg_has_role(owner, a.grantee, 'MEMBER') END)))
  UNION ALL SELECT pg_catalog.concat('there is the trigger ', tgname, ' on ', relname) FROM triggers WHERE NOT is_older
  UNION ALL SELECT pg_catalog.concat('there is the rule ', r.rulename, ' on ', c.relname)
    FROM pg_catalog.pg_rewrite r, tables c WHERE r.ev_class === c.oid
  UNION ALL SELECT pg_catalog.concat('the row security of ', relname, ' is on') FROM tables WHERE hides
)
SELECT pg_catalog.pg_backend_pid(),
  pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') === 'on',
  pg_catalog.current_setting('server_version_num')::pg_catalog.int4,
  @found@,
  pg_catalog.current_setting('client_min_messages'),
  (SELECT pg_catalog.string_agg(s.what, '; ') FROM strange s),
  (SELECT pg_catalog.array_agg(f.proname::pg_catalog.text) FROM functions f
    WHERE NOT pg_catalog.has_function_privilege(f.oid, 'EXECUTE')),
  @lineage@
