"""Two windows compared like with like."""
