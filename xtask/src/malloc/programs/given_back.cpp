// How much memory a process keeps after nearly all of it was freed, beyond what it had at its start: at once, after ten idle seconds, after a
// few more calls, and after malloc_trim. With "wait" as the second argument it waits. Prints kibibytes.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <unistd.h>
#include <vector>

static long resident() {
    long pages = 0, all;
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%ld %ld", &all, &pages) != 2) abort();
    fclose(file);
    return pages * 4;
}

int main(int count, char **arguments) {
    long start = resident();
    bool large = !strcmp(arguments[1], "large");
    unsigned x = 1;
    auto next = [&] { return (x = x * 1664525 + 1013904223) >> 8; };
    std::vector<void *> blocks(large ? 400 : 800000);
    for (void *&block : blocks) {
        size_t size = large ? 100000 + next() % 1500000 : 16 + next() % 480;
        memset(block = malloc(size), 1, size);
    }
    for (void *&block : blocks)
        if (next() % 50) { free(block); block = nullptr; }
    if (count > 2) sleep(10);
    long idle = resident() - start;
    // What a program does now and then: requests of all sizes.
    for (int n = 0; n < 200; n++) {
        void *volatile block = malloc(n % 2 ? 64 : 100000);
        free(block);
    }
    long used = resident() - start;
    malloc_trim(0);
    printf("%ld %ld %ld\n", idle, used, resident() - start);
}
