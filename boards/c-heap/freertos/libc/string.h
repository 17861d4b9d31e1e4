/* What FreeRTOS's sources include; the compiler comes without a C library. The functions are in replay.c. */
#ifndef STRING_H
#define STRING_H
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *start, int byte, size_t bytes);
size_t strlen(const char *text);
#endif
