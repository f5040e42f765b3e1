"""Data and how they become rows: data sets, tables, preprocessing, robust statistics."""
