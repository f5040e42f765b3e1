"""Objectives: losses, transport costs, outlier scores, mixtures, and methods made of them."""
