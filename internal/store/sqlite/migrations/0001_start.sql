-- Lists, maps and resources are JSON. Times are nanoseconds since 1970, 0 for
-- none. Names are NULL where there is none, so that UNIQUE leaves them alone.
CREATE TABLE templates (
	id        TEXT PRIMARY KEY,
	name      TEXT NOT NULL UNIQUE,
	image_id  TEXT NOT NULL,
	image     TEXT NOT NULL,
	layers    TEXT NOT NULL,
	start     TEXT NOT NULL,
	env       TEXT NOT NULL,
	user      TEXT NOT NULL,
	dir       TEXT NOT NULL,
	resources TEXT NOT NULL,
	setuid    INTEGER NOT NULL,
	created   INTEGER NOT NULL
) STRICT;

CREATE TABLE sandboxes (
	id            TEXT PRIMARY KEY,
	name          TEXT UNIQUE,
	template      TEXT NOT NULL REFERENCES templates (id),
	hostname      TEXT NOT NULL,
	env           TEXT NOT NULL,
	resources     TEXT NOT NULL,
	state         TEXT NOT NULL,
	lost_reason   TEXT NOT NULL,
	created       INTEGER NOT NULL,
	generation    INTEGER NOT NULL,
	at            TEXT NOT NULL,
	forked_from   TEXT NOT NULL,
	start_session TEXT NOT NULL
) STRICT;
CREATE INDEX sandboxes_template ON sandboxes (template);

CREATE TABLE sessions (
	id         TEXT PRIMARY KEY,
	sandbox    TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	key        TEXT NOT NULL,
	argv       TEXT NOT NULL,
	tty        INTEGER NOT NULL,
	pid        INTEGER NOT NULL,
	started    INTEGER NOT NULL,
	deadline   INTEGER NOT NULL,
	generation INTEGER NOT NULL,
	ended      INTEGER NOT NULL,
	ended_at   INTEGER NOT NULL,
	exit_code  INTEGER NOT NULL,
	reason     TEXT NOT NULL,
	marks      TEXT NOT NULL,
	UNIQUE (sandbox, key)
) STRICT;

CREATE TABLE checkpoints (
	id      TEXT PRIMARY KEY,
	sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	name    TEXT,
	created INTEGER NOT NULL,
	UNIQUE (sandbox, name)
) STRICT;
CREATE INDEX checkpoints_name ON checkpoints (name);
