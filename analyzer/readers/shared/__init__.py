"""What all readers share: the cache of the user, checksums, files that are regular."""
