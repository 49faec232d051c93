-- What is known of the tables: NULL if there is none, `latchwork 3 1` if they are of version 3 and have functions of
-- revision 1 (0 if one is missing), the comment if they are of no version that is known. The version is in the name of a
-- constraint; before version 3 it was in the comment, which anybody may have changed. The session may find other
-- functions and operators than the server's.
-- $1 the table of locks, $2 its schema, $3 its name
CASE WHEN pg_catalog.to_regclass($1) IS NULL THEN NULL ELSE coalesce(
  (SELECT 'latchwork '::text OPERATOR(pg_catalog.||) pg_catalog.max(pg_catalog.substr(c.conname::text, 19)::integer)::text
      OPERATOR(pg_catalog.||) ' '::text OPERATOR(pg_catalog.||) (
        SELECT CASE WHEN pg_catalog.count(f.made) OPERATOR(pg_catalog.>=) @functions@::bigint THEN pg_catalog.min(f.made) ELSE 0 END
        FROM (SELECT pg_catalog."substring"(p.prosrc, '-- latchwork [0-9]+ functions ([0-9]+)'::text)::integer AS made
          FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
          WHERE n.nspname::text OPERATOR(pg_catalog.=) $2 AND p.proname::text OPERATOR(pg_catalog.=) ANY (ARRAY[@names@])) f)::text
    FROM pg_catalog.pg_constraint c
    WHERE c.conrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)::oid AND c.conname::text OPERATOR(pg_catalog.~) '^latchwork_version_[0-9]{1,6}$'::text
    HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0::bigint),
  (SELECT o.said FROM (SELECT pg_catalog.obj_description(pg_catalog.to_regclass($1)::oid, 'pg_class') AS said) o
    WHERE o.said OPERATOR(pg_catalog.~) '^latchwork [0-9]{1,6}$'::text),
  (SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)::oid
      AND t.tgname::text OPERATOR(pg_catalog.~) '^latchwork_observe'::text) THEN 'latchwork 1' ELSE 'latchwork 2' END
    FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)::oid AND NOT a.attisdropped
      AND a.attname::text OPERATOR(pg_catalog.=) ANY (ARRAY['k', 'name', 'token', 'claim', 'mode', 'ends', 'asked', 'crowd', 'closed', 'open',
        'holder', 'closed_by'])
    HAVING pg_catalog.count(*) OPERATOR(pg_catalog.=) 12::bigint),
  pg_catalog.obj_description(pg_catalog.to_regclass($1)::oid, 'pg_class'), '') END
