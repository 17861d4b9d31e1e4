/* What k_heap_allotment.c needs of Zephyr's <zephyr/kernel.h>, for a check without Zephyr: the same names and types. An application has
   Zephyr's own. */

#ifndef CHECK_ZEPHYR_KERNEL_H
#define CHECK_ZEPHYR_KERNEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  int64_t ticks;
} k_timeout_t;

#define K_NO_WAIT ((k_timeout_t){0})

struct k_heap {
  void *heap;
};

void k_heap_init(struct k_heap *heap, void *memory, size_t bytes);
void *k_heap_alloc(struct k_heap *heap, size_t bytes, k_timeout_t timeout);
void *k_heap_aligned_alloc(struct k_heap *heap, size_t align, size_t bytes, k_timeout_t timeout);
void *k_heap_calloc(struct k_heap *heap, size_t count, size_t size, k_timeout_t timeout);
void *k_heap_realloc(struct k_heap *heap, void *block, size_t bytes, k_timeout_t timeout);
void k_heap_free(struct k_heap *heap, void *block);

#endif
