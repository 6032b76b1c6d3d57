"""What runs in Spark's driver: plans, the rendezvous and the runs that it keeps."""
