"""The coordinator's side: who gets how much, and the rows that move."""
