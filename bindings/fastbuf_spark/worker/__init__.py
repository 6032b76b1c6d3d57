"""Code of Spark's Python workers: producers, consumers, blocks, the bare stage."""
