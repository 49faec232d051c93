-- Functions of a newer client are not replaced: another one may have made them since this one has looked.
DO @body@
BEGIN
  IF EXISTS (SELECT FROM pg_proc p WHERE p.oid = to_regproc(@literal:_stand@)
      AND substring(p.prosrc FROM '-- latchwork [0-9]+ functions ([0-9]+)')::integer > @functions@) THEN
    RAISE EXCEPTION 'the functions of a newer client were made meanwhile';
  END IF;
END @body@;
