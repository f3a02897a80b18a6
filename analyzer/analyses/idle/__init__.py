"""Why a GPU was idle: ledger, culprits, gaps, syncs, exposure, utilisation."""
