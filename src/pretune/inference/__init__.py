"""What a bare model can do: write, fill blanks, give vectors, find, and score."""
