"""What the scripts beside this folder share: an engine in a container, a client, and the record."""
