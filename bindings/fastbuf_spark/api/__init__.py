"""What the user calls: DataFrames and RDDs."""
