  -- Included in the functions: observers are notified if the holders may have changed.
  IF durable OR news OR r.claim IS DISTINCT FROM old.claim THEN
    @notify@
  END IF;
