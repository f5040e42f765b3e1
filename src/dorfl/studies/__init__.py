"""Studies of a table: what is asked for, the rows it is asked of, and the answers."""
