"""What holds of a trained model: the distance, certificates, gaps, the statements of the paper."""
