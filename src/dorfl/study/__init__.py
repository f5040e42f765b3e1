"""One study, wherever its rows are: in one table, or at sites that keep them."""
