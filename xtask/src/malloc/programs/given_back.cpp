// How much memory a process keeps after nearly all of it was freed, and trimmed. Prints kibibytes.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <vector>

static long resident() {
    long pages = 0, all;
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%ld %ld", &all, &pages) != 2) abort();
    fclose(file);
    return pages * 4;
}

int main(int, char **arguments) {
    bool large = !strcmp(arguments[1], "large");
    unsigned x = 1;
    auto next = [&] { return (x = x * 1664525 + 1013904223) >> 8; };
    std::vector<void *> blocks(large ? 400 : 800000);
    for (void *&block : blocks) {
        size_t size = large ? 100000 + next() % 1500000 : 16 + next() % 480;
        memset(block = malloc(size), 1, size);
    }
    long before = resident();
    for (void *&block : blocks)
        if (next() % 50) { free(block); block = nullptr; }
    malloc_trim(0);
    printf("%ld %ld\n", before, resident());
}
