-- Each is made once: a trigger that is made locks its table against writers for a moment.
DO $observed$
BEGIN
  CREATE TRIGGER latchwork_observe_new AFTER INSERT ON @locks@ FOR EACH ROW
    WHEN (NEW.claim IS NOT NULL AND NEW.k <> '' AND @observed:NEW.k@) EXECUTE FUNCTION @observe@();
EXCEPTION WHEN duplicate_object THEN NULL;
END $observed$;
DO $observed$
BEGIN
  CREATE TRIGGER latchwork_observe AFTER UPDATE OF claim ON @locks@ FOR EACH ROW
    WHEN (OLD.claim IS DISTINCT FROM NEW.claim AND NEW.k <> '' AND @observed:NEW.k@) EXECUTE FUNCTION @observe@();
EXCEPTION WHEN duplicate_object THEN NULL;
END $observed$;
DO $observed$
BEGIN
  CREATE TRIGGER latchwork_observe_new AFTER INSERT ON @line@ FOR EACH ROW
    WHEN (NEW.held IS NOT NULL AND @observed:NEW.k@) EXECUTE FUNCTION @observe@();
EXCEPTION WHEN duplicate_object THEN NULL;
END $observed$;
DO $observed$
BEGIN
  CREATE TRIGGER latchwork_observe AFTER UPDATE OF held ON @line@ FOR EACH ROW
    WHEN ((OLD.held IS NULL) <> (NEW.held IS NULL) AND @observed:NEW.k@) EXECUTE FUNCTION @observe@();
EXCEPTION WHEN duplicate_object THEN NULL;
END $observed$;
DO $observed$
BEGIN
  CREATE TRIGGER latchwork_observe_end AFTER DELETE ON @line@ FOR EACH ROW
    WHEN (OLD.held IS NOT NULL AND @observed:OLD.k@) EXECUTE FUNCTION @observe@();
EXCEPTION WHEN duplicate_object THEN NULL;
END $observed$;
