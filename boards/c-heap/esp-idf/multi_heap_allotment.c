/* Takes the place of ESP-IDF's components/heap/multi_heap.c and tlsf: with this file and liballotment_heap.a in the component, heap_caps_malloc,
   malloc and all others allocate from heaps of allotment, one for each region that the start-up code registers, so capabilities hold. A region uses
   2,044 KiB at most: leave larger external RAM to ESP-IDF's own. */

#include <stdbool.h>
#include <stddef.h>

#include <multi_heap.h>

#include "multi_heap_platform.h"

#include "allotment_heap.h"

/* Lies at the start of a region, in front of its heap. */
struct multi_heap_info {
  void *heap;
  void *lock;
  size_t least_free; /* since multi_heap_reset_minimum_free_bytes */
};

multi_heap_handle_t multi_heap_register(void *start, size_t bytes) {
  struct multi_heap_info *region = (void *)(((size_t)start + 7) / 8 * 8);
  size_t own = (size_t)((char *)(region + 1) - (char *)start);
  if (!start || bytes < own) return NULL;
  void *heap = allotment_heap_create(region + 1, bytes - own);
  if (!heap) return NULL;
  region->heap = heap;
  region->lock = NULL;
  region->least_free = allotment_heap_figures(heap).free;
  return region;
}

void multi_heap_set_lock(multi_heap_handle_t region, void *lock) { region->lock = lock; }

void multi_heap_internal_lock(multi_heap_handle_t region) { MULTI_HEAP_LOCK(region->lock); }

void multi_heap_internal_unlock(multi_heap_handle_t region) { MULTI_HEAP_UNLOCK(region->lock); }

/* The heap has no lock of its own, so that also what only reads needs ESP-IDF's. */
static AllotmentFigures figures_of(multi_heap_handle_t region) {
  multi_heap_internal_lock(region);
  AllotmentFigures figures = allotment_heap_figures(region->heap);
  multi_heap_internal_unlock(region);
  return figures;
}

static void note(multi_heap_handle_t region) {
  size_t free = allotment_heap_figures(region->heap).free;
  if (free < region->least_free) region->least_free = free;
}

void *multi_heap_aligned_alloc(multi_heap_handle_t region, size_t bytes, size_t alignment) {
  if (!region || !bytes) return NULL;
  multi_heap_internal_lock(region);
  void *block = allotment_heap_alloc(region->heap, alignment, bytes);
  note(region);
  multi_heap_internal_unlock(region);
  return block;
}

void *multi_heap_malloc(multi_heap_handle_t region, size_t bytes) { return multi_heap_aligned_alloc(region, bytes, 8); }

void multi_heap_free(multi_heap_handle_t region, void *block) {
  if (!region || !block) return;
  multi_heap_internal_lock(region);
  bool freed = allotment_heap_free(region->heap, block);
  multi_heap_internal_unlock(region);
  MULTI_HEAP_ASSERT(freed, (size_t)block); /* no block, or freed before */
  (void)freed;
}

void multi_heap_aligned_free(multi_heap_handle_t region, void *block) { multi_heap_free(region, block); }

void *multi_heap_realloc(multi_heap_handle_t region, void *block, size_t bytes) {
  if (!block) return multi_heap_malloc(region, bytes);
  if (!bytes) {
    multi_heap_free(region, block);
    return NULL;
  }
  multi_heap_internal_lock(region);
  void *moved = allotment_heap_realloc(region->heap, block, bytes);
  note(region);
  multi_heap_internal_unlock(region);
  return moved;
}

size_t multi_heap_get_allocated_size(multi_heap_handle_t region, void *block) {
  multi_heap_internal_lock(region);
  size_t bytes = allotment_heap_size(region->heap, block);
  multi_heap_internal_unlock(region);
  return bytes;
}

size_t multi_heap_free_size(multi_heap_handle_t region) {
  return region ? figures_of(region).free : 0;
}

size_t multi_heap_minimum_free_size(multi_heap_handle_t region) { return region ? region->least_free : 0; }

size_t multi_heap_reset_minimum_free_bytes(multi_heap_handle_t region) {
  multi_heap_internal_lock(region);
  size_t old = region->least_free;
  region->least_free = allotment_heap_figures(region->heap).free;
  multi_heap_internal_unlock(region);
  return old;
}

void multi_heap_restore_minimum_free_bytes(multi_heap_handle_t region, size_t bytes) {
  multi_heap_internal_lock(region);
  if (bytes < region->least_free) region->least_free = bytes;
  multi_heap_internal_unlock(region);
}

/* The blocks that are free are not counted; 1 stands for some. */
void multi_heap_get_info(multi_heap_handle_t region, multi_heap_info_t *info) {
  *info = (multi_heap_info_t){0};
  if (!region) return;
  AllotmentFigures figures = figures_of(region);
  info->total_free_bytes = figures.free;
  info->total_allocated_bytes = figures.used;
  info->largest_free_block = figures.largest_free;
  info->minimum_free_bytes = region->least_free;
  info->allocated_blocks = figures.live_blocks;
  info->free_blocks = figures.free > 0;
  info->total_blocks = info->allocated_blocks + info->free_blocks;
}

bool multi_heap_check(multi_heap_handle_t region, bool print_errors) {
  (void)print_errors;
  AllotmentFigures figures = figures_of(region);
  return figures.used + figures.free == figures.capacity;
}

void multi_heap_dump(multi_heap_handle_t region) {
  AllotmentFigures figures = figures_of(region);
  MULTI_HEAP_STDERR_PRINTF("heap %p: %u bytes used in %u blocks, %u free, largest %u\n", region->heap, (unsigned)figures.used,
                           (unsigned)figures.live_blocks, (unsigned)figures.free, (unsigned)figures.largest_free);
}
