"""What ncu measured: metrics, stall reasons, rooflines, advice."""
