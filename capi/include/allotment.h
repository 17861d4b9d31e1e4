/* The heap of liballotment.so and liballotment.a. The functions of the C library (malloc, free, mallinfo2, malloc_trim ..) are in stdlib.h
   and malloc.h as always. Made by cbindgen from capi/src/figures.rs: change that. */

#ifndef ALLOTMENT_H
#define ALLOTMENT_H

#include <stddef.h>
#include <stdint.h>

// The heap's figures at one moment, in bytes.
typedef struct AllotmentFigures {
  // Bytes in live blocks, those in the caches of threads included.
  size_t used;
  // The largest value that `used` has had.
  size_t peak;
  // Bytes for which memory was asked of the system.
  size_t committed;
  // Bytes of free memory that the system has not got back, about.
  size_t dirty;
  // Bytes of addresses that are reserved.
  size_t reserved;
  // Bytes that went back to the system, over all.
  uint64_t purged;
} AllotmentFigures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the heap's figures.
struct AllotmentFigures allotment_figures(void);

// Tells the heap how short memory is: 0 for enough, 1 for low, 2 and more for critical. From 1 on all free memory goes back at once,
// and other threads free their caches when they next need a block from outside them. Returns the bytes that went back. The level
// holds until the next call: at 1 the heap keeps at most 2 MiB and a sixteenth of what is in use free, at 2 it keeps 1 MiB.
//
// Call it in Android's `onTrimMemory` and `onLowMemory`, and when the thermal state changes.
size_t allotment_pressure(int level);

// Has the system provide the memory of the next `bytes` bytes that the heap takes for blocks, so that no access to them is a page fault. Small
// blocks count with their pages: the first one of a size takes 16 to 256 KiB. `malloc_trim` ends it, and a later call replaces it. Returns 0, or
// `ENOMEM` if there is not so much.
int allotment_reserve(size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOTMENT_H */
