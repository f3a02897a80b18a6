"""What the threads of the host did, and which call launched what."""
