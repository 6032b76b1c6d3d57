"""Preallocated memory by itself: segments of a pool, used as buffers, home at the end."""

import numpy as np

import fastbuf as fb

if __name__ == "__main__":
    with fb.NetworkBufferPool(segments=8, segment_size=4_096) as pool:
        with pool.create_local_pool(required=2, maximum=4) as local:
            with local.request() as segment:
                numbers = np.frombuffer(segment, dtype=np.int64)
                numbers[:] = 7
                assert int(numbers.sum()) == 7 * 512
                assert local.in_use == 1
                del numbers
            assert local.in_use == 0
            assert len(local.request_many(4)) == 4
        assert pool.available == 8
