"""What is known of each tool: its commands, its version, its words."""
