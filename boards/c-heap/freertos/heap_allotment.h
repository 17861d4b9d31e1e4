/* FreeRTOS's names for the heap of liballotment_heap.a, as its portable.h declares them. */

#ifndef HEAP_ALLOTMENT_H
#define HEAP_ALLOTMENT_H

#include <stddef.h>

void *pvPortMalloc(size_t size);
void *pvPortCalloc(size_t count, size_t size);
void vPortFree(void *block);
size_t xPortGetFreeHeapSize(void);
size_t xPortGetMinimumEverFreeHeapSize(void);

#endif
