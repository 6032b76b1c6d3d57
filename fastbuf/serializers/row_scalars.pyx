"""Dates, times and decimals as integers, exactly: values that would lose digits are refused.

Days and dates are converted by the algorithms of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"
(days_from_civil, civil_from_days).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.datetime cimport (
    PyDate_Check, PyDateTime_Check, PyDateTime_CheckExact, PyDelta_Check, PyDelta_CheckExact, PyTime_Check, date_day,
    date_month, date_new, date_year, datetime_day, datetime_hour, datetime_microsecond, datetime_minute,
    datetime_month, datetime_new, datetime_second, datetime_year, import_datetime, time_hour, time_microsecond,
    time_minute, time_new, time_second, timedelta_days, timedelta_microseconds, timedelta_new, timedelta_seconds,
)
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

import decimal

import_datetime()

cdef enum:
    MICROS = 1_000_000

cdef int64_t DAY = <int64_t> 86_400 * MICROS
cdef int64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF
cdef int64_t FIRST_DAY = -719162      # 0001-01-01
cdef int64_t LAST_DAY = 2932896       # 9999-12-31

Decimal = decimal.Decimal
# As Python ints: Cython would compute the power as a double.
cdef list TENS = [int(f"1{'0' * digits}") for digits in range(77)]
# Enough digits for every decimal256; rounding raises an error.
cdef object EXACT = decimal.Context(
    prec=200, Emin=-10_000, Emax=10_000, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow]
)


cdef int64_t _days(int64_t year, int64_t month, int64_t day) noexcept nogil:
    cdef int64_t era, of_era, of_year
    if month <= 2:
        year -= 1
    era = (year if year >= 0 else year - 399) // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef void _civil(int64_t days, int *year, int *month, int *day) noexcept nogil:
    cdef int64_t era, of_era, year_of_era, of_year, shifted
    days += 719468
    era = (days if days >= 0 else days - 146096) // 146097
    of_era = days - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    day[0] = <int> (of_year - (153 * shifted + 2) // 5 + 1)
    month[0] = <int> (shifted + 3 if shifted < 10 else shifted - 9)
    year[0] = <int> (year_of_era + era * 400 + (1 if month[0] <= 2 else 0))


cdef int64_t _in_units(int64_t micros, int64_t unit) except? -1:
    cdef int64_t per
    if unit == MICROS:
        return micros
    if unit > MICROS:
        per = unit // MICROS
        if micros > INT64_MAX // per or micros < -(INT64_MAX // per):
            raise OverflowError("it does not fit 64 bits of nanoseconds")
        return micros * per
    per = MICROS // unit
    if micros % per:
        raise ValueError(f"it has microseconds that units of 1/{unit} s would lose")
    return micros // per


cdef int64_t _in_micros(int64_t x, int64_t unit) except? -1:
    cdef int64_t per
    if unit == MICROS:
        return x
    if unit > MICROS:
        per = unit // MICROS
        if x % per:
            raise ValueError("it has nanoseconds, which Python's times cannot hold")
        return x // per
    per = MICROS // unit
    if x > INT64_MAX // per or x < -(INT64_MAX // per):
        raise OverflowError("it lies outside Python's range")
    return x * per


cdef int64_t _floor_days(int64_t micros) noexcept nogil:
    cdef int64_t days = micros // DAY
    return days - 1 if micros - days * DAY < 0 else days


cdef int _check_fine(object value) except -1:
    """Refuses the nanoseconds of pandas' Timestamp and Timedelta, which are subclasses of Python's."""
    if not PyDateTime_CheckExact(value) and not PyDelta_CheckExact(value) and \
            (getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)):
        raise ValueError("it has nanoseconds, which Python's times cannot hold")
    return 0


cdef int64_t scalar_to_int(int scalar, int64_t unit, object zone, object value) except? -1:
    cdef int64_t days, micros
    if scalar == SCALAR_DATE:
        if not PyDate_Check(value) or PyDateTime_Check(value):
            raise TypeError("a datetime.date is needed")
        days = _days(date_year(value), date_month(value), date_day(value))
        return days * 86_400_000 if unit else days
    if scalar == SCALAR_TIME:
        if not PyTime_Check(value):
            raise TypeError("a datetime.time is needed")
        if value.tzinfo is not None:
            raise TypeError("a datetime.time without time zone is needed")
        micros = (time_hour(value) * 60 + time_minute(value)) * 60 + time_second(value)
        return _in_units(micros * MICROS + time_microsecond(value), unit)
    if scalar == SCALAR_DURATION:
        if not PyDelta_Check(value):
            raise TypeError("a datetime.timedelta is needed")
        _check_fine(value)
        return _in_units(_delta(value), unit)
    if not PyDateTime_Check(value):
        raise TypeError("a datetime.datetime is needed")
    _check_fine(value)
    offset = value.utcoffset()
    if zone is None and offset is not None:
        raise TypeError("a datetime without time zone is needed: the field has none")
    if zone is not None and offset is None:
        raise TypeError(f"a datetime with a time zone is needed: the field is in {zone}")
    days = _days(datetime_year(value), datetime_month(value), datetime_day(value))
    micros = (datetime_hour(value) * 60 + datetime_minute(value)) * 60 + datetime_second(value)
    micros = days * DAY + micros * MICROS + datetime_microsecond(value)
    if offset is not None:
        micros -= _delta(offset)
    return _in_units(micros, unit)


cdef int64_t _delta(object value) except? -1:
    cdef int64_t days = timedelta_days(value)
    if days > 106_751_990 or days < -106_751_990:
        raise OverflowError("it does not fit 64 bits of microseconds")
    return days * DAY + timedelta_seconds(value) * <int64_t> MICROS + timedelta_microseconds(value)


cdef object scalar_from_int(int scalar, int64_t unit, object zone, int64_t x):
    cdef int year, month, day
    cdef int64_t days, micros, seconds
    if scalar == SCALAR_DATE:
        if unit:
            if x % 86_400_000:
                raise ValueError("it is not a whole day")
            x //= 86_400_000
        if x < FIRST_DAY or x > LAST_DAY:
            raise OverflowError("it lies outside the years 1 to 9999")
        _civil(x, &year, &month, &day)
        return date_new(year, month, day)
    micros = _in_micros(x, unit)
    if scalar == SCALAR_TIME:
        if micros < 0 or micros >= DAY:
            raise OverflowError("it lies outside a day")
        seconds = micros // MICROS
        return time_new(<int> (seconds // 3600), <int> (seconds // 60 % 60), <int> (seconds % 60),
                        <int> (micros % MICROS), None)
    days = _floor_days(micros)
    micros -= days * DAY
    seconds = micros // MICROS
    if scalar == SCALAR_DURATION:
        return timedelta_new(<int> days, <int> seconds, <int> (micros % MICROS))
    if days < FIRST_DAY or days > LAST_DAY:
        raise OverflowError("it lies outside the years 1 to 9999")
    _civil(days, &year, &month, &day)
    moment = datetime_new(year, month, day, <int> (seconds // 3600), <int> (seconds // 60 % 60), <int> (seconds % 60),
                          <int> (micros % MICROS), zone)
    return moment if zone is None else zone.fromutc(moment)


cdef int decimal_to_bytes(int precision, int scale, int width, object value, uint8_t *dst) except -1:
    cdef bytes out
    if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
        raise TypeError("a decimal.Decimal is needed")
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("decimals of a schema have neither NaN nor infinity")
    try:
        moved = number.scaleb(scale, EXACT)
        unscaled = int(moved)
        exact = moved == unscaled
    except decimal.DecimalException:
        raise OverflowError("it has too many digits") from None
    if not exact:
        raise ValueError(f"it has more than {scale} digits after the point")
    if abs(unscaled) >= TENS[precision]:
        raise OverflowError(f"it has more than {precision} digits")
    out = unscaled.to_bytes(width, "little", signed=True)
    memcpy(dst, <const char *> out, width)
    return 0


cdef object decimal_from_bytes(int precision, int scale, int width, const uint8_t *src):
    unscaled = int.from_bytes(PyBytes_FromStringAndSize(<const char *> src, width), "little", signed=True)
    if abs(unscaled) >= TENS[precision]:
        raise OverflowError(f"it has more than {precision} digits")
    return Decimal(unscaled).scaleb(-scale, EXACT)
