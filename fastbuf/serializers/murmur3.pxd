# murmur3_hash has no C interface: kernels are fb_murmur3.h, partitioning is partition.pxd
