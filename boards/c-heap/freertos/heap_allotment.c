/* Takes the place of FreeRTOS's heap_4.c or heap_5.c: add this file and liballotment_heap.a to the build, leave theirs out, and give the
   heap its memory with `allotment_add` before the first request. The heap masks interrupts for a bounded number of instructions, so
   tasks need not be suspended meanwhile, and blocks may be taken and freed in interrupt handlers as well. */

#include "heap_allotment.h"

#include "allotment_heap.h"

void *pvPortMalloc(size_t size) { return size ? allotment_malloc(size) : NULL; }

void *pvPortCalloc(size_t count, size_t size) { return allotment_calloc(count, size); }

void vPortFree(void *block) { (void)allotment_free(block); }

size_t xPortGetFreeHeapSize(void) { return allotment_figures().free; }

size_t xPortGetMinimumEverFreeHeapSize(void) {
  AllotmentFigures figures = allotment_figures();
  return figures.capacity - figures.peak;
}
