-- Whether sandboxes of a template get an identity of their own.
ALTER TABLE templates ADD COLUMN reseed INTEGER NOT NULL DEFAULT 0;
