/* The heap of liballotment.so and liballotment.a. The functions of the C library (malloc, free, mallinfo2, malloc_trim ..) are in stdlib.h
   and malloc.h as always. Made by cbindgen from capi/src/figures.rs: change that. */

#ifndef ALLOTMENT_H
#define ALLOTMENT_H

#include <stddef.h>
#include <stdint.h>

// The heap's statistics at one moment, in bytes.
typedef struct AllotmentFigures {
  // Bytes in live blocks, including those in thread caches.
  size_t used;
  // The highest value of `used` so far.
  size_t peak;
  // Bytes of memory requested from the system.
  size_t committed;
  // Approximate bytes of free memory not yet returned to the system.
  size_t dirty;
  // Bytes of reserved addresses.
  size_t reserved;
  // Total bytes returned to the system so far.
  uint64_t purged;
} AllotmentFigures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the heap's statistics.
struct AllotmentFigures allotment_figures(void);

// Sets the memory pressure: 0 for none, 1 for low memory, 2 and above for critically low memory. From 1 on, the heap returns all free
// memory to the system at once, and other threads free their caches when they next need a block from outside them. Returns the number of
// returned bytes. The level holds until the next call: at 1, the heap keeps at most 2 MiB plus a sixteenth of the used memory free; at
// 2, 1 MiB.
//
// Call this in Android's `onTrimMemory` and `onLowMemory`, and when the thermal state changes.
size_t allotment_pressure(int level);

// Makes the system provide the memory of the next `bytes` bytes that the heap uses for blocks, so that no access to them causes a page
// fault. Small blocks count with their pages: the first one of a size takes 16 to 256 KiB. `malloc_trim` ends the reservation, and a
// later call replaces it. Returns 0, or `ENOMEM` if there is not enough memory.
int allotment_reserve(size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOTMENT_H */
