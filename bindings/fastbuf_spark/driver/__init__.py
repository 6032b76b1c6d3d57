"""Code of Spark's driver: plans, the rendezvous and its runs."""
