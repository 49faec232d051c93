-- Notifies observers when the holders of a key may have changed. An observer holds a shared advisory lock with the
-- number of its key. If nobody does, a change of a claim costs the question for that lock, which is given back at once.
-- The commit of a notification takes a lock on the whole database: only keys that somebody observes pay that.
CREATE OR REPLACE FUNCTION @observe@() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $observe$
BEGIN
  PERFORM pg_notify('@seen@', @number:coalesce(NEW.k, OLD.k)@::text);
  RETURN NULL;
END $observe$;
