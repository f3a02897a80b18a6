"""Files as they lie on a disk or a store, and formats within them that several rooms read."""
