/* Takes the place of Zephyr's kernel/kheap.c: add this file and liballotment_heap.a to the application, leave kheap.c out, and the functions
   of k_heap use this heap. All k_heaps of a program are one heap, whose regions are the memories that they were given, so a block may
   come from the memory of another one. The heap never waits: a request that finds no room fails at once, whatever its timeout. */

#include <stddef.h>

#include <zephyr/kernel.h>

#include "allotment_heap.h"

void k_heap_init(struct k_heap *heap, void *memory, size_t bytes) {
  (void)heap;
  (void)allotment_add(memory, bytes);
}

void *k_heap_alloc(struct k_heap *heap, size_t bytes, k_timeout_t timeout) {
  (void)heap, (void)timeout;
  return bytes ? allotment_malloc(bytes) : NULL;
}

void *k_heap_aligned_alloc(struct k_heap *heap, size_t align, size_t bytes, k_timeout_t timeout) {
  (void)heap, (void)timeout;
  return bytes ? allotment_aligned_alloc(align ? align : 1, bytes) : NULL;
}

void *k_heap_calloc(struct k_heap *heap, size_t count, size_t size, k_timeout_t timeout) {
  (void)heap, (void)timeout;
  return count && size ? allotment_calloc(count, size) : NULL;
}

void *k_heap_realloc(struct k_heap *heap, void *block, size_t bytes, k_timeout_t timeout) {
  if (!block) return k_heap_alloc(heap, bytes, timeout);
  if (bytes) return allotment_realloc(block, bytes);
  (void)allotment_free(block);
  return NULL;
}

void k_heap_free(struct k_heap *heap, void *block) {
  (void)heap;
  (void)allotment_free(block);
}
