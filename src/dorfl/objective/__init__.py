"""What is minimised: losses, costs, scores, mixtures and the methods they make up. No data."""
