"""What the study found, put into words, tables and figures: one module for each part."""
