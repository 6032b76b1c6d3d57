# murmur3_hash has no C interface: its kernels are in fb_murmur3.h, partitioning is in partition.pxd
