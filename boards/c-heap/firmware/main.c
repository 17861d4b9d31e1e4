/* C firmware on the heap of liballotment_heap.a: two regions, random requests that are checked byte by byte, and FreeRTOS's, Zephyr's
   and ESP-IDF's names. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <multi_heap.h>
#include <multi_heap_platform.h>
#include <zephyr/kernel.h>

#include "allotment_heap.h"
#include "heap_allotment.h"

void say(const char *text);
void say_number(const char *name, size_t number);
_Noreturn void finish(bool ok);

static uint8_t first[24 * 1024];
static uint8_t second[8 * 1024];

enum { SLOTS = 64, ROUNDS = 20000 };

static struct {
  uint8_t *block;
  size_t size;
  uint8_t fill;
} live[SLOTS];

static uint32_t state = 1;

static uint32_t below(uint32_t limit) {
  state = state * 1664525u + 1013904223u;
  return (state >> 8) % limit;
}

static void check(bool holds, const char *what) {
  if (!holds) {
    say("failed: ");
    say(what);
    say("\n");
    finish(false);
  }
}

static void check_fill(const uint8_t *block, size_t size, uint8_t fill) {
  for (size_t n = 0; n < size; n++) check(block[n] == fill, "a live block has changed");
}

static void fill(uint8_t *block, size_t size, uint8_t with) {
  for (size_t n = 0; n < size; n++) block[n] = with;
}

static void edges(void) {
  check(allotment_malloc(100) == NULL, "a heap without memory has no room");
  check(!allotment_add(NULL, 100), "no region starts at null");
  check(allotment_add(first, sizeof first) && allotment_add(second, sizeof second), "both regions are taken");
  check(allotment_free(NULL) && allotment_size(NULL) == 0, "null is ignored");
  check(allotment_malloc(SIZE_MAX) == NULL && allotment_calloc(SIZE_MAX / 2, 4) == NULL, "too large");
  check(allotment_aligned_alloc(24, 8) == NULL, "24 is no alignment");
  void *nothing = allotment_malloc(0);
  check(nothing != NULL && allotment_free(nothing), "an empty block is one");
  check(!allotment_free(nothing), "a double free is found");
  for (size_t align = 1; align <= 1024; align *= 2) {
    uint8_t *block = allotment_aligned_alloc(align, 40);
    check(block && (uintptr_t)block % align == 0 && (uintptr_t)block % 8 == 0, "alignment");
    check(allotment_size(block) == 40, "size");
    check(allotment_free(block), "an aligned block is freed");
  }
  check(allotment_figures().live_blocks == 0, "all is free");
}

static void random_requests(void) {
  unsigned refused = 0, moved = 0;
  for (unsigned round = 0; round < ROUNDS; round++) {
    unsigned n = below(SLOTS);
    if (!live[n].block) {
      size_t size = 1 + below(below(2) ? 200 : 2000);
      bool zeroed = below(4) == 0;
      uint8_t *block = zeroed ? allotment_calloc(1, size) : allotment_malloc(size);
      if (!block) {
        refused++;
        continue;
      }
      check((uintptr_t)block % 8 == 0, "alignment");
      if (zeroed) check_fill(block, size, 0);
      live[n].block = block;
      live[n].size = size;
    } else if (below(3) == 0) {
      size_t size = 1 + below(400), kept = size < live[n].size ? size : live[n].size;
      uint8_t *block = allotment_realloc(live[n].block, size);
      if (!block) {
        refused++;
        continue;
      }
      check_fill(block, kept, live[n].fill);
      moved += block != live[n].block;
      live[n].block = block;
      live[n].size = size;
    } else {
      check_fill(live[n].block, live[n].size, live[n].fill);
      check(allotment_free(live[n].block), "a live block is freed");
      live[n].block = NULL;
      continue;
    }
    live[n].fill = (uint8_t)round;
    fill(live[n].block, live[n].size, live[n].fill);
    check(allotment_size(live[n].block) >= live[n].size && allotment_size(live[n].block) < live[n].size + 16, "size");
  }
  for (unsigned n = 0; n < SLOTS; n++) {
    if (live[n].block) check_fill(live[n].block, live[n].size, live[n].fill);
    check(allotment_free(live[n].block), "the last blocks are freed");
  }
  AllotmentFigures figures = allotment_figures();
  check(figures.used == 0 && figures.free == figures.capacity, "nothing is lost");
  check(refused > 0 && moved > 0 && figures.failed > refused, "both ends were met");
  say_number("peak", figures.peak);
  say_number("capacity", figures.capacity);
}

static void freertos(void) {
  size_t all = xPortGetFreeHeapSize();
  uint8_t *block = pvPortMalloc(100);
  check(block && xPortGetFreeHeapSize() <= all - 100, "pvPortMalloc");
  fill(block, 100, 1);
  vPortFree(block);
  check(xPortGetFreeHeapSize() == all && xPortGetMinimumEverFreeHeapSize() < all, "vPortFree");
  uint8_t *zeroed = pvPortCalloc(10, 10);
  check_fill(zeroed, 100, 0);
  vPortFree(zeroed);
  vPortFree(NULL);
}

static void zephyr(void) {
  static uint8_t third[4 * 1024];
  struct k_heap heap;
  size_t all = allotment_figures().capacity;
  k_heap_init(&heap, third, sizeof third);
  check(allotment_figures().capacity > all + 3000, "k_heap_init");
  uint8_t *block = k_heap_alloc(&heap, 100, K_NO_WAIT);
  check(block && allotment_figures().live_blocks == 1, "k_heap_alloc");
  fill(block, 100, 2);
  block = k_heap_realloc(&heap, block, 300, K_NO_WAIT);
  check(block != NULL, "k_heap_realloc");
  check_fill(block, 100, 2);
  uint8_t *aligned = k_heap_aligned_alloc(&heap, 256, 40, K_NO_WAIT);
  check(aligned && (uintptr_t)aligned % 256 == 0, "k_heap_aligned_alloc");
  uint8_t *zeroed = k_heap_calloc(&heap, 10, 10, K_NO_WAIT);
  check_fill(zeroed, 100, 0);
  check(k_heap_alloc(&heap, 100000, K_NO_WAIT) == NULL && k_heap_alloc(&heap, 0, K_NO_WAIT) == NULL, "no room");
  k_heap_free(&heap, zeroed);
  k_heap_free(&heap, aligned);
  check(k_heap_realloc(&heap, block, 0, K_NO_WAIT) == NULL, "an empty block is freed");
  k_heap_free(&heap, NULL);
  check(allotment_figures().live_blocks == 0, "k_heap_free");
}

int check_locked, check_refused;

/* Two regions are two heaps, as those of different capabilities must be. */
static void esp_idf(void) {
  static uint8_t fast[8 * 1024], slow[4 * 1024 + 3];
  check(multi_heap_register(fast, 10) == NULL, "multi_heap_register of too little");
  multi_heap_handle_t one = multi_heap_register(fast, sizeof fast), other = multi_heap_register(slow + 3, sizeof slow - 3);
  check(one && other, "multi_heap_register");
  size_t all = multi_heap_free_size(one), most = multi_heap_free_size(other);
  check(all > 7 * 1024 && most > 3 * 1024, "multi_heap_free_size");
  uint8_t *block = multi_heap_malloc(one, 3000);
  check(block >= fast && block + 3000 <= fast + sizeof fast, "a block is of its own heap");
  fill(block, 3000, 3);
  block = multi_heap_realloc(one, block, 3500);
  check(block && multi_heap_get_allocated_size(one, block) >= 3500, "multi_heap_realloc");
  check_fill(block, 3000, 3);
  check(multi_heap_malloc(other, 4096) == NULL && multi_heap_free_size(other) == most, "no heap borrows of another one");
  uint8_t *aligned = multi_heap_aligned_alloc(other, 40, 64);
  check(aligned && (uintptr_t)aligned % 64 == 0 && aligned >= slow, "multi_heap_aligned_alloc");
  multi_heap_info_t info;
  multi_heap_get_info(one, &info);
  check(info.allocated_blocks == 1 && info.total_free_bytes + info.total_allocated_bytes <= sizeof fast, "multi_heap_get_info");
  check(multi_heap_minimum_free_size(one) <= all - 3500, "multi_heap_minimum_free_size");
  multi_heap_free(one, aligned);
  check(check_refused == 1, "a block of another heap is refused");
  multi_heap_aligned_free(other, aligned);
  multi_heap_free(one, block);
  multi_heap_free(one, block);
  check(check_refused == 2, "a double free is refused");
  check(multi_heap_reset_minimum_free_bytes(one) < all && multi_heap_minimum_free_size(one) == all, "the least is reset");
  check(multi_heap_check(one, true) && multi_heap_free_size(one) == all && multi_heap_free_size(other) == most, "all is free");
  check(check_locked == 0, "each lock is released");
}

/* Blocks are kept while everything else is in use, and are found to be free. */
static void keep(void) {
  static uint8_t memory[11 * 1024];
  void *heap = allotment_heap_create(memory, sizeof memory);
  check(heap != NULL, "allotment_heap_create");
  check(!allotment_heap_keep(heap, 2056, 3000, 2) && !allotment_heap_keep(heap, 3000, 2500, 2), "sizes of kept blocks");
  check(!allotment_heap_keep(heap, 2500, 3000, 5) && !allotment_heap_keep(heap, 2500, 6000, 3), "no room");
  check(allotment_heap_figures(heap).used == 0, "nothing is kept");
  check(allotment_heap_keep(heap, 2500, 3000, 2) && !allotment_heap_keep(heap, 2500, 3000, 1), "allotment_heap_keep");
  check(allotment_heap_figures(heap).kept == 6000, "two are free");
  uint8_t *last = NULL;
  for (uint8_t *block; (block = allotment_heap_alloc(heap, 8, 40)) != NULL;) last = block;
  check(allotment_heap_figures(heap).largest_free == 3000, "a kept block is the largest");
  for (int round = 0; round < 100; round++) {
    uint8_t *one = allotment_heap_alloc(heap, 8, 3000), *other = allotment_heap_alloc(heap, 8, 2500);
    check(one && other && one != other && allotment_heap_figures(heap).kept == 0, "kept blocks");
    check(allotment_heap_alloc(heap, 8, 2500) == NULL, "there are two");
    fill(one, 3000, 4);
    fill(other, 2500, 5);
    check(allotment_heap_realloc(heap, other, 3000) == other, "resized in its range");
    check(allotment_heap_realloc(heap, other, 3001) == NULL && allotment_heap_size(heap, other) >= 3000, "not beyond");
    check_fill(one, 3000, 4);
    check_fill(other, 2500, 5);
    check(allotment_heap_free(heap, one) && !allotment_heap_free(heap, one), "a double free of a kept block");
    check(allotment_heap_size(heap, one) == 0 && allotment_heap_realloc(heap, one, 2600) == NULL, "it is no block");
    check(allotment_heap_free(heap, other), "a kept block is freed");
  }
  check(allotment_heap_alloc(heap, 8, 2499) == NULL && allotment_heap_alloc(heap, 16, 2500) == NULL, "others get none");
  check(allotment_heap_figures(heap).kept == 6000 && allotment_heap_free(heap, last), "all others are live");
  check(!allotment_keep(2500, 1000000, 1) && allotment_figures().kept == 0, "allotment_keep");
}

int main(void) {
  edges();
  random_requests();
  freertos();
  zephyr();
  esp_idf();
  keep();
  say("passed\n");
  finish(true);
}
