// Follows the header of liballotment.so, which comes before this text.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#pragma weak allotment_figures
#pragma weak allotment_pressure

// Frees 8 MiB that were written to, in blocks of 512 KiB, and returns the most that is free in between. All of it may go back for its age,
// but so soon only once: two rounds.
static size_t kept() {
    enum { COUNT = 16, SIZE = 512 << 10 };
    size_t most = 0;
    for (int round = 0; round < 2; round++) {
        void *blocks[COUNT];
        for (int i = 0; i < COUNT; i++) blocks[i] = memset(malloc(SIZE), 1, SIZE);
        for (int i = 0; i < COUNT; i++) {
            free(blocks[i]);
            size_t dirty = allotment_figures().dirty;
            if (dirty > most) most = dirty;
        }
    }
    return most;
}

int main() {
    if (!allotment_pressure || !allotment_figures) return puts("the functions are missing"), 1;
    enum { COUNT = 200000 };
    static void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) blocks[i] = malloc(100);
    AllotmentFigures full = allotment_figures();
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    if (allotment_pressure(0) != 0) return puts("no need, but memory went back"), 1;
    size_t gone = allotment_pressure(1);
    AllotmentFigures after = allotment_figures();
    bool good = full.used >= 100 * COUNT && full.peak >= full.used && after.used < full.used / 10
        && after.purged >= gone && after.purged >= 100 * COUNT / 2 && after.dirty <= full.used / 10
        && after.committed >= full.used && after.reserved >= after.committed;
    printf("%zu in use, %zu gone, %zu dirty\n", after.used, gone, after.dirty);
    // A level holds until the next one: the shorter memory is, the less of it stays free.
    size_t low = kept();
    allotment_pressure(2);
    size_t critical = kept();
    allotment_pressure(0);
    size_t normal = kept();
    printf("free memory that stays: %zu, low %zu, critical %zu\n", normal, low, critical);
    return !(good && normal >= 8 << 20 && low <= 3 << 20 && low > critical && critical <= 1 << 20);
}
