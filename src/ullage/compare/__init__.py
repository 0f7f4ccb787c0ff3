"""The same engine with and without ullage: containers, load, starts, table."""
