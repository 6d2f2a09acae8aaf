"""Where the tables of the cost database are: in an SQLite file that processes share, or in PostgreSQL, which machines share."""
