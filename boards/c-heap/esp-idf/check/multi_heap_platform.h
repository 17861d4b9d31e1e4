/* What multi_heap_allotment.c needs of ESP-IDF's multi_heap_platform.h, for a check without ESP-IDF: locks and refusals are counted. */

#ifndef CHECK_MULTI_HEAP_PLATFORM_H
#define CHECK_MULTI_HEAP_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>

extern int check_locked;
extern int check_refused;

#define MULTI_HEAP_LOCK(lock) ((void)(lock), check_locked++)
#define MULTI_HEAP_UNLOCK(lock) ((void)(lock), check_locked--)
#define MULTI_HEAP_ASSERT(condition, address) ((void)(address), check_refused += !(condition))
#define MULTI_HEAP_STDERR_PRINTF(...) check_print(__VA_ARGS__)

__attribute__((format(printf, 1, 2))) static inline void check_print(const char *format, ...) { (void)format; }

void multi_heap_internal_lock(multi_heap_handle_t heap);
void multi_heap_internal_unlock(multi_heap_handle_t heap);

#endif
