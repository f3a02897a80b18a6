"""The buckets of the ledger: what each nanosecond of a device's window goes to."""

from typing import Final

#: The buckets in order of precedence, busy ones before idle ones (definitions.md, section 5).
MEANINGS: Final = {
    "kernel": "kernels running",
    "communication": "only communication kernels running",
    "memcpy": "only copies running",
    "memset": "only memsets running",
    "profiler": "the profiler's own overhead",
    "loading": "creating contexts and loading modules",
    "allocation": "allocating and freeing memory",
    "launch": "launch overhead",
    "queued": "submitted work that waited on the device",
    "sync": "blocking calls",
    "api": "other CUDA calls",
    "host": "the program's own code outside CUDA",
    "unknown": "what the recording does not show",
}
BUCKETS: Final = tuple(MEANINGS)
