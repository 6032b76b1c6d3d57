"""What runs in Spark's Python workers: producers, consumers, blocks, the bare stage."""
