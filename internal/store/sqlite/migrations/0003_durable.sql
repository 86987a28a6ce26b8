-- What a sandbox's checkpoints are, so that they can come back without the
-- supervisor that made them, and why a sandbox is in its state.
ALTER TABLE checkpoints ADD COLUMN info TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sandboxes ADD COLUMN reason TEXT NOT NULL DEFAULT '';
