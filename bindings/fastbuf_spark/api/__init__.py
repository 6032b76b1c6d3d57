"""The public functions and classes, for DataFrames and RDDs."""
