"""A model of one table: training, evaluation, outliers, comparison, pages, the model folder."""
