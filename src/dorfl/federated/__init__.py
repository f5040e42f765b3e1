"""The two roles, what passes between them, and the engines that carry it."""
