// What a program does on the hardened library, by the name of the case.
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 300

static char *volatile blocks[COUNT];
static volatile char seen;

static int right(void) {
    unsigned random = 1;
    size_t sizes[COUNT] = {0};
    for (int step = 0; step < 300000; step++) {
        random = random * 1664525 + 1013904223;
        int at = (random >> 8) % COUNT;
        size_t size = 1 + (random >> 16) % (step % 100 ? 600 : 60000);
        char *block = blocks[at];
        if (block && (block[0] != (char)at || block[sizes[at] - 1] != (char)at)) return 1;
        if (random & 0x40000000) {
            block = realloc(block, size);
        } else {
            free(block);
            block = random & 0x20000000 ? calloc(1, size) : memalign(64, size);
            if (random & 0x20000000) for (size_t byte = 0; byte < size; byte++) if (block[byte]) return 2;
        }
        // All that it has may be used.
        sizes[at] = malloc_usable_size(block);
        if (sizes[at] < size || (uintptr_t)block % 16) return 3;
        memset(block, at, sizes[at]);
        blocks[at] = block;
    }
    return 0;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "right")) return right();
    for (int at = 0; at < COUNT; at++) blocks[at] = malloc(100);
    char *block = blocks[COUNT / 2];
    if (!strcmp(what, "double_free")) {
        free(block);
        free(block);
    } else if (!strcmp(what, "double_free_after_write")) {
        free(block);
        memset(block, 1, 100);
        free(block);
    } else if (!strcmp(what, "double_free_later")) {
        free(block);
        for (int at = 0; at < 100; at++) free(blocks[at]);
        free(block);
    } else if (!strcmp(what, "free_inside")) {
        free(block + 32);
    } else if (!strcmp(what, "overflow")) {
        block[malloc_usable_size(block)] = 1;
        free(block);
    } else if (!strcmp(what, "realloc_of_freed")) {
        free(block);
        block = realloc(block, 1000);
    } else if (!strcmp(what, "write_after_free")) {
        for (int at = 0; at < COUNT; at++) free(blocks[at]);
        for (int at = 0; at < COUNT; at++) blocks[at][50] = 1;
        for (int at = 0; at < 2 * COUNT; at++) malloc(100);
    } else if (!strcmp(what, "read_after_free")) {
        // One block in about 5,000 has a page of its own.
        for (int step = 0; step < 500000; step++) {
            block = malloc(100);
            free(block);
            seen = block[50];
        }
    }
    return 0;
}
