"""What a program repeats: its iterations, their steady part, and what came before, between and after."""
