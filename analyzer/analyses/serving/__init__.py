"""Steps of serving engines by kind: what each costs, what the GPU waits for between them, and what padding takes."""
