"""What people look at: figures and tables, made from results."""
