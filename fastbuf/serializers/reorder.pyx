"""Moves the rows of columns to new places: a value is read once, in order, and written to the place of its row.

BatchScatter moves rows to a number of targets, in a wire format; here each row has a place of its own, in Arrow's.
What it gains: a million rows that Arrow concatenates and takes in the order of a key take 1.5 to 2.6 times as long, and
twice the memory; a job with ten thousand groups takes 18 % longer (docs/explanation/what-stays.md).

Source of the places: counting sort (D. E. Knuth, The Art of Computer Programming, volume 3, section 5.2, algorithm D).
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

from fastbuf.serializers.objects cimport fb_copy_short


cdef struct Sixteen:
    int64_t low
    int64_t high


ctypedef fused Value:
    uint8_t
    uint16_t
    uint32_t
    int64_t
    Sixteen


def counted_places(const int64_t[::1] codes, int64_t bound):
    """The place of each row when rows are sorted by their codes; rows of equal codes keep their order.

    Parameters
    ----------
    codes : numpy.ndarray
        int64 of shape (rows,), from 0 to ``bound - 1``.
    bound : int
        Four bytes of memory are taken for each number below it.

    Returns
    -------
    numpy.ndarray
        uint32 of shape (rows,).

    Raises
    ------
    ValueError
        A code is out of these bounds, or there are more than 2**32 - 1 rows.
    """
    cdef Py_ssize_t rows = codes.shape[0], i
    cdef uint32_t place = 0, count
    cdef int64_t code
    cdef bint wrong = rows > 0xFFFFFFFF
    places = np.empty(rows, np.uint32)
    counts = np.zeros(max(bound, 1), np.uint32)
    cdef uint32_t[::1] to = places, next_of = counts
    if not wrong:
        with nogil:
            for i in range(rows):
                code = codes[i]
                if code < 0 or code >= bound:
                    wrong = True
                    break
                next_of[code] += 1
            if not wrong:
                for i in range(bound):
                    count = next_of[i]
                    next_of[i] = place
                    place += count
                for i in range(rows):
                    code = codes[i]
                    to[i] = next_of[code]
                    next_of[code] += 1
    if wrong:
        raise ValueError(f"codes of {rows} rows must be from 0 to {bound - 1}, and rows fewer than 2**32")
    return places


def places_of(const int64_t[::1] order):
    """The place of each row, given the row at each place (a permutation).

    Parameters
    ----------
    order : numpy.ndarray
        int64 of shape (rows,).

    Returns
    -------
    numpy.ndarray
        uint32 of shape (rows,).

    Raises
    ------
    ValueError
        A number is not that of a row.
    """
    cdef Py_ssize_t rows = order.shape[0], i
    cdef bint wrong = rows > 0xFFFFFFFF
    places = np.empty(rows, np.uint32)
    cdef uint32_t[::1] to = places
    if not wrong:
        with nogil:
            for i in range(rows):
                if order[i] < 0 or order[i] >= rows:
                    wrong = True
                    break
                to[order[i]] = <uint32_t> i
    if wrong:
        raise ValueError(f"an order of {rows} rows must have numbers from 0 to {rows - 1}, and rows fewer than 2**32")
    return places


cdef int _put(const Value *source, const uint32_t *places, Py_ssize_t rows, Value *target) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(rows):
        target[places[i]] = source[i]
    return 0


def put_fixed(const uint8_t[::1] source, int width, const uint32_t[::1] places, uint8_t[::1] target):
    """Write values of one length to their places.

    Parameters
    ----------
    source : bytes-like
        The values, ``width`` bytes each.
    width : int
        1, 2, 4, 8 or 16.
    places : numpy.ndarray
        uint32 of shape (rows,): the place of each of them, in values.
    target : numpy.ndarray
        uint8; places lie within it, which is not checked.

    Raises
    ------
    ValueError
        The source is shorter than its rows, or the width is another.
    """
    cdef Py_ssize_t rows = places.shape[0]
    if width not in (1, 2, 4, 8, 16) or source.shape[0] < rows * width:
        raise ValueError(f"{rows} values of {width} bytes in {source.shape[0]}: widths are 1, 2, 4, 8 and 16")
    if not rows:
        return
    cdef const uint8_t *values = &source[0]
    cdef const uint32_t *to = &places[0]
    cdef uint8_t *at = &target[0]
    with nogil:
        if width == 1:
            _put[uint8_t](values, to, rows, at)
        elif width == 2:
            _put[uint16_t](<const uint16_t *> values, to, rows, <uint16_t *> at)
        elif width == 4:
            _put[uint32_t](<const uint32_t *> values, to, rows, <uint32_t *> at)
        elif width == 8:
            _put[int64_t](<const int64_t *> values, to, rows, <int64_t *> at)
        else:
            _put[Sixteen](<const Sixteen *> values, to, rows, <Sixteen *> at)


def put_lengths(const int32_t[::1] offsets, const uint32_t[::1] places, int32_t[::1] ends):
    """Write the lengths of texts to their places; NumPy's ``cumsum`` of all makes offsets of them.

    Parameters
    ----------
    offsets : numpy.ndarray
        int32 of shape (rows + 1,).
    places : numpy.ndarray
        uint32 of shape (rows,).
    ends : numpy.ndarray
        int32: the length of the text at place p is written to ``ends[p + 1]``.

    Raises
    ------
    ValueError
        There are fewer offsets than rows.
    """
    cdef Py_ssize_t rows = places.shape[0], i
    if offsets.shape[0] <= rows:
        raise ValueError(f"{offsets.shape[0]} offsets of {rows} texts")
    with nogil:
        for i in range(rows):
            ends[places[i] + 1] = offsets[i + 1] - offsets[i]


def put_texts(
    const int32_t[::1] offsets,
    const uint8_t[::1] texts,
    const uint32_t[::1] places,
    const int32_t[::1] starts,
    uint8_t[::1] target,
):
    """Write texts, or binaries, to their places.

    Parameters
    ----------
    offsets : numpy.ndarray
        int32 of shape (rows + 1,), in ``texts``.
    texts : bytes-like
    places : numpy.ndarray
        uint32 of shape (rows,).
    starts : numpy.ndarray
        int32: where the text of each place begins in the target; :func:`put_lengths` has given its length.
    target : numpy.ndarray
        uint8; not checked, as are the starts.

    Raises
    ------
    ValueError
        There are fewer offsets than rows, or they lie outside of the texts.
    """
    cdef Py_ssize_t rows = places.shape[0], i
    if offsets.shape[0] <= rows or offsets[0] < 0 or offsets[rows] > texts.shape[0]:
        raise ValueError(f"{offsets.shape[0]} offsets of {rows} texts of {texts.shape[0]} bytes do not fit")
    if offsets[0] == offsets[rows]:
        return
    cdef const uint8_t *data = &texts[0]
    cdef uint8_t *at = &target[0]
    with nogil:
        for i in range(rows):
            fb_copy_short(at + starts[places[i]], data + offsets[i], offsets[i + 1] - offsets[i])
