/* Replays a trace on FreeRTOS's heap_4.c or heap_5.c or on ours, and counts the blocks that were placed and the instructions that each
   call took. QEMU must run with -icount shift=8: an instruction then lasts 256 ns, which is 6.4 ticks of the timer, so that rounding gives
   the exact number.

   HEAP: 4, 5, or 0 for ours. REGIONS: 1 or 2. BYTES: all of the memory. TRACE: a file of operations. SLOTS: blocks at a time. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if HEAP
#include "FreeRTOS.h"
#include "task.h"
#else
#include "allotment_heap.h"
#include "heap_allotment.h"
#endif

void say(const char *text);
void say_number(const char *name, size_t number);
_Noreturn void finish(bool ok);

enum { ALLOCATE, REALLOCATE, FREE };

struct operation {
  uint16_t slot, kind;
  /* Of the new block. */
  uint32_t size;
};

__asm__(".section .rodata\n.balign 4\n.global trace\ntrace: .incbin \"" TRACE "\"\n.global trace_end\ntrace_end:\n.text\n");
extern const struct operation trace[], trace_end[];

/* Of two regions, the first has three quarters of the memory. */
__attribute__((aligned(8))) uint8_t ucHeap[BYTES];
#define FIRST (REGIONS == 1 ? BYTES : BYTES / 32 * 24)
#if REGIONS == 2
__attribute__((aligned(8))) static uint8_t gap[4096];
__attribute__((aligned(8))) static uint8_t second[BYTES - FIRST];
#endif

static struct {
  uint8_t *block;
  uint32_t size;
} live[SLOTS];

void *memset(void *start, int byte, size_t bytes) {
  for (uint8_t *at = start; bytes; bytes--) *at++ = (uint8_t)byte;
  return start;
}

void *memcpy(void *to, const void *from, size_t bytes) {
  const uint8_t *source = from;
  for (uint8_t *at = to; bytes; bytes--) *at++ = *source++;
  return to;
}

size_t strlen(const char *text) {
  size_t count = 0;
  while (text[count]) count++;
  return count;
}

static volatile uint32_t *const timer = (uint32_t *)0xe000e010;

static inline uint32_t now(void) { return timer[2]; }

static uint32_t empty;

static uint32_t since(uint32_t start) {
  uint32_t ticks = (start - now()) & 0xffffff;
  return (ticks * 5 + 16) / 32 - empty;
}

struct cost {
  uint32_t calls, worst;
  uint64_t all;
};

static struct cost placed, refused, freed;

static void add(struct cost *cost, uint32_t instructions) {
  cost->calls++;
  cost->all += instructions;
  if (instructions > cost->worst) cost->worst = instructions;
}

static void say_cost(const char *calls, const char *mean, const char *worst, const struct cost *cost) {
  say_number(calls, cost->calls);
  /* In tenths. */
  say_number(mean, cost->calls ? (size_t)((cost->all * 10 + cost->calls / 2) / cost->calls) : 0);
  say_number(worst, cost->worst);
}

static uint8_t *take(uint32_t size) {
  uint32_t start = now();
  uint8_t *block = pvPortMalloc(size);
  uint32_t cost = since(start);
  add(block ? &placed : &refused, cost);
  if (block) {
    /* Both ends, so that a block that is given twice is found. */
    block[0] = (uint8_t)size;
    block[size - 1] = (uint8_t)size;
  }
  return block;
}

static void give(uint8_t *block, uint32_t size) {
  if (block[0] != (uint8_t)size || block[size - 1] != (uint8_t)size) {
    say("failed: a live block has changed\n");
    finish(false);
  }
  uint32_t start = now();
  vPortFree(block);
  add(&freed, since(start));
}

static void begin(void) {
#if HEAP == 5
  HeapRegion_t regions[] = {
      {ucHeap, FIRST},
#if REGIONS == 2
      {second, sizeof second},
#endif
      {NULL, 0},
  };
  vPortDefineHeapRegions(regions);
#elif HEAP == 0
  if (!allotment_add(ucHeap, FIRST)) finish(false);
#if REGIONS == 2
  if (!allotment_add(second, sizeof second)) finish(false);
#endif
#endif
#if REGIONS == 2
  gap[0] = 1;
#endif
}

int main(void) {
  timer[1] = 0xffffff;
  timer[2] = 0;
  timer[0] = 5;
  uint32_t start = now();
  empty = since(start);
  start = now();
  __asm__ volatile(".rept 100\nnop\n.endr");
  if (since(start) != 100) {
    say("failed: the timer does not count instructions\n");
    finish(false);
  }
  begin();
  /* heap_4.c makes its list at the first request. */
  vPortFree(pvPortMalloc(1));
  for (const struct operation *at = trace; at != trace_end; at++) {
    uint8_t *old = live[at->slot].block;
    uint32_t had = live[at->slot].size;
    if (at->kind != FREE) {
      uint8_t *block = take(at->size);
      if (!block) continue; /* A block that cannot grow stays as it is. */
      live[at->slot].block = block;
      live[at->slot].size = at->size;
    } else {
      live[at->slot].block = NULL;
    }
    if (old) give(old, had);
  }
  say_cost("placed", "placed_mean", "placed_worst", &placed);
  say_cost("refused", "refused_mean", "refused_worst", &refused);
  say_cost("freed", "freed_mean", "freed_worst", &freed);
  finish(true);
}
