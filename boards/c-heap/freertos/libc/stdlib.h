/* What FreeRTOS's sources include; the compiler comes without a C library. */
#ifndef STDLIB_H
#define STDLIB_H
#include <stddef.h>
#endif
