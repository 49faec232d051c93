-- From version 1 to version 2: the statements and the functions notify observers, and no triggers do.
DROP TRIGGER IF EXISTS latchwork_observe_new ON @locks@;
DROP TRIGGER IF EXISTS latchwork_observe ON @locks@;
DROP TRIGGER IF EXISTS latchwork_observe_new ON @line@;
DROP TRIGGER IF EXISTS latchwork_observe ON @line@;
DROP TRIGGER IF EXISTS latchwork_observe_end ON @line@;
DROP FUNCTION IF EXISTS @observe@();
