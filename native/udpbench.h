/*
 * The native boundary: what Python may call and what both sides read, by subject.
 *
 * Rule: only the lines below are directives, because cffi parses the very text of the files that
 * they name (build.py). Functions take a config and a stats struct that the caller allocated,
 * return 0 or -errno, and never print, exit, allocate inside a loop, or decide what a count means.
 * Times are CLOCK_MONOTONIC nanoseconds. A loop returns -EINVAL for a config that its check
 * refuses, and does nothing. A check returns "field: what it may be", where UB_ names stand for
 * their values; NULL: none is refused.
 */
#include "boundary/basis.h"
#include "boundary/listening.h"
#include "boundary/log.h"
#include "boundary/receiving.h"
#include "boundary/sending.h"
#include "boundary/xsk.h"
