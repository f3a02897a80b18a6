"""Names of host time from another recording of the same program: the launches of both are aligned."""
