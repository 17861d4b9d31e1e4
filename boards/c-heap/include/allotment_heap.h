/* A heap for C firmware. Made by cbindgen from boards/c-heap/src: change that. */

#ifndef ALLOTMENT_HEAP_H
#define ALLOTMENT_HEAP_H

#include <stdbool.h>
#include <stddef.h>

// The heap's figures at one moment, in bytes; blocks count with what they were rounded up to.
typedef struct AllotmentFigures {
  // Bytes for blocks.
  size_t capacity;
  // Bytes in live blocks.
  size_t used;
  // The largest value that `used` has had.
  size_t peak;
  // Bytes that are free, in one piece or in several.
  size_t free;
  // The largest request that is sure to succeed.
  size_t largest_free;
  // Number of live blocks.
  size_t live_blocks;
  // Number of requests that found no room.
  size_t failed;
  // Bytes of kept blocks that are free: they are in `used`, and requests of other sizes may have failed because of them.
  size_t kept;
} AllotmentFigures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Gives the heap the `bytes` bytes at `start`, which nothing else may use from then on. Up to four regions of up to 511 KiB can be
// given. Returns whether they could be used.
//
// # Safety
//
// The bytes must be valid for reads and writes, and nothing else may use them.
bool allotment_add(void *start,
                   size_t bytes);

// Allocates `size` bytes aligned to 8; null if there is no room.
void *allotment_malloc(size_t size);

// Allocates `count` times `size` bytes, all zero; null if there is no room.
void *allotment_calloc(size_t count, size_t size);

// Allocates `size` bytes aligned to `align`, a power of two; null if there is no room or the alignment is none.
void *allotment_aligned_alloc(size_t align,
                              size_t size);

// Frees a block; null is ignored. Returns false, with nothing done, if the address is not the start of a live block.
//
// # Safety
//
// The block must not be used afterwards.
bool allotment_free(void *block);

// Changes the size of a block, in place or by moving it; null if there is no room, and then the block is as it was. Null as well if
// the address is not the start of a live block.
//
// # Safety
//
// If the block moves, it must not be used any more at its old address.
void *allotment_realloc(void *block,
                        size_t size);

// Returns the bytes that a live block has, at least as many as were asked for; 0 if the address is not the start of one.
size_t allotment_size(void *block);

// Keeps `count` blocks, four at most, of `most` bytes for requests of `least` to `most` bytes, so that these find one however fragmented
// the heap becomes; a freed block is kept for the next one. `least` is more than 2,056. Call it once, at start-up. Returns false, with
// nothing kept, if there is no room.
bool allotment_keep(size_t least,
                    size_t most,
                    size_t count);

// Returns the heap's figures.
struct AllotmentFigures allotment_figures(void);

// Creates a heap of its own in the `bytes` bytes at `start`, which nothing else may use from then on; null if they are too few. The heap
// uses at most 2,044 KiB of them. It has no lock: calls for one heap must not run at the same time.
//
// # Safety
//
// The bytes must be valid for reads and writes, and nothing else may use them.
void *allotment_heap_create(void *start,
                            size_t bytes);

// Allocates `size` bytes of a heap aligned to `align`, a power of two; null if there is no room or the alignment is none.
//
// # Safety
//
// The heap must be one of `allotment_heap_create`.
void *allotment_heap_alloc(void *heap,
                           size_t align,
                           size_t size);

// Frees a block like `allotment_free`. Returns false as well if it is not of this heap.
//
// # Safety
//
// The heap must be one of `allotment_heap_create`. The block must not be used afterwards.
bool allotment_heap_free(void *heap, void *block);

// Changes the size of a block like `allotment_realloc`.
//
// # Safety
//
// The heap must be one of `allotment_heap_create`. If the block moves, it must not be used any more at its old address.
void *allotment_heap_realloc(void *heap,
                             void *block,
                             size_t size);

// Returns the bytes of a live block like `allotment_size`.
//
// # Safety
//
// The heap must be one of `allotment_heap_create`.
size_t allotment_heap_size(void *heap, void *block);

// Keeps blocks of a heap like `allotment_keep`.
//
// # Safety
//
// The heap must be one of `allotment_heap_create`.
bool allotment_heap_keep(void *heap, size_t least, size_t most, size_t count);

// Returns a heap's statistics.
//
// # Safety
//
// The heap must be one of `allotment_heap_create`.
struct AllotmentFigures allotment_heap_figures(void *heap);

// Gives the heap the `bytes` bytes at `start`, which nothing else may use from then on. Up to four regions of up to 511 KiB can be
// given. Returns whether they could be used.
//
// # Safety
//
// The bytes must be valid for reads and writes, and nothing else may use them.
bool allotment_add(void *start,
                   size_t bytes);

// Allocates `size` bytes aligned to 8; null if there is no room.
void *allotment_malloc(size_t size);

// Allocates `count` times `size` bytes, all zero; null if there is no room.
void *allotment_calloc(size_t count, size_t size);

// Allocates `size` bytes aligned to `align`, a power of two; null if there is no room or the alignment is none.
void *allotment_aligned_alloc(size_t align,
                              size_t size);

// Frees a block; null is ignored. Returns false, with nothing done, if the address is not the start of a live block.
//
// # Safety
//
// The block must not be used afterwards.
bool allotment_free(void *block);

// Changes the size of a block, in place or by moving it; null if there is no room, and then the block is as it was. Null as well if
// the address is not the start of a live block.
//
// # Safety
//
// If the block moves, it must not be used any more at its old address.
void *allotment_realloc(void *block,
                        size_t size);

// Returns the bytes that a live block has, at least as many as were asked for; 0 if the address is not the start of one.
size_t allotment_size(void *block);

// Keeps `count` blocks, four at most, of `most` bytes for requests of `least` to `most` bytes, so that these find one however fragmented
// the heap becomes; a freed block is kept for the next one. `least` is more than 2,056. Call it once, at start-up. Returns false, with
// nothing kept, if there is no room.
bool allotment_keep(size_t least,
                    size_t most,
                    size_t count);

// Returns the heap's figures.
struct AllotmentFigures allotment_figures(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOTMENT_HEAP_H */
